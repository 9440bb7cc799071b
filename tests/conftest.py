"""What every test runs on: one BLAS with a fixed number of threads, loaded before anything imports mlx.

On MLX's own reference BLAS every way of computing a product has the same bits, so a bitwise test would prove nothing;
and another number of threads gives other bits.

Generated tests don't look at the clock: a busy machine makes neither an example nor a test's inputs wrong.
"""

from hypothesis import HealthCheck, settings
from phyla.backend.blas import load_fast_blas
from phyla.backend.compile_folder import use_private_compile_folder

BLAS_THREADS = 2

settings.register_profile("phyla", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("phyla")

load_fast_blas(threads=BLAS_THREADS)
use_private_compile_folder()
