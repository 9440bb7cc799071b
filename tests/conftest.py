"""What every test runs on: one BLAS with a fixed number of threads, loaded before anything imports mlx.

On MLX's own reference BLAS every way of computing a product has the same bits, so a bitwise test would prove nothing;
and another number of threads gives other bits.

Generated tests don't look at the clock: a busy machine makes neither an example nor a test's inputs wrong.
"""

from hypothesis import HealthCheck, settings
from phyla.backend.blas import load_fast_blas
from phyla.backend.compile_folder import use_private_compile_folder

BLAS_THREADS = 2

# The same examples in every run: a change fails its own tests, not those of the next one.
# `--hypothesis-profile explore` looks further.
settings.register_profile("explore", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("phyla", settings.get_profile("explore"), derandomize=True)
settings.load_profile("phyla")

load_fast_blas(threads=BLAS_THREADS)
use_private_compile_folder()
