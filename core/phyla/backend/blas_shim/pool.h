/* Threads that work jobs off together with whoever has some; one list of jobs at a time. */

static int num_threads = 1;

enum { SPINS_BEFORE_SLEEP = 4000, SPINS_BEFORE_YIELD = 20000, SLICE_NANOSECONDS = 100000 };

typedef void (*job_type)(const void *work, int job);

/* The list being worked on: its number (upper 32 bits), how many jobs it has and how many are claimed (16 bits each).
 * Claiming a job moves it by one, so `run` and `work` stay as they are until every claimed job is counted as done. */
static _Atomic uint64_t list;
static _Atomic int num_done;
static _Atomic int num_sleeping;
static _Atomic uint32_t wakeups;
static _Atomic int caller_core = -1;
static atomic_flag is_taken = ATOMIC_FLAG_INIT;
static job_type run;
static const void *work;

static inline void pause_briefly(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static int claimed(uint64_t state) { return (int)(state & 0xffff); }
static int num_jobs(uint64_t state) { return (int)(state >> 16 & 0xffff); }

static int claim(void) {
    uint64_t state = atomic_load(&list);
    while (claimed(state) < num_jobs(state))
        if (atomic_compare_exchange_weak(&list, &state, state + 1)) return claimed(state);
    return -1;
}

static int work_off(void) {
    int job, num_run = 0;
    for (; (job = claim()) >= 0; num_run++) {
        run(work, job);
        atomic_fetch_add(&num_done, 1);
    }
    return num_run;
}

/* As the kernel has it; the C library doesn't everywhere. */
struct scheduling {
    uint32_t size, policy;
    uint64_t flags;
    int32_t nice;
    uint32_t priority;
    uint64_t runtime, deadline, period;
};

/* This thread waits and wakes hundreds of times in a step. With short slices (Linux 6.12; ignored before) it gets a core
 * at once from a thread that has much to do, of whatever priority, instead of at the end of that one's slice. */
static void ask_for_short_slices(void) {
    struct scheduling own = {0};
    if (syscall(SYS_sched_getattr, 0, &own, sizeof own, 0) != 0 || own.policy != SCHED_OTHER) return;
    own.size = sizeof own;
    own.runtime = SLICE_NANOSECONDS;
    syscall(SYS_sched_setattr, 0, &own, 0);
}

static int has_unclaimed(void) {
    uint64_t state = atomic_load(&list);
    return claimed(state) < num_jobs(state);
}

/* Leave the caller's core, if that is where this thread is. Linux wakes a thread where it slept, and takes one from a
 * crowded core only where another core idles: beside a thread of the lowest priority, which a core with nothing better
 * runs all the time, caller and worker took turns on one core for a whole step. */
static void step_aside(void) {
    int core = atomic_load(&caller_core);
    if (core < 0 || sched_getcpu() != core) return;
    cpu_set_t allowed, others;
    if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return;
    others = allowed;
    CPU_CLR(core, &others);
    /* Moves at once. Nobody is bound to a core for longer than that. */
    if (CPU_COUNT(&others) > 0 && sched_setaffinity(0, sizeof others, &others) == 0)
        sched_setaffinity(0, sizeof allowed, &allowed);
}

static void *worker(void *unused) {
    ask_for_short_slices();
    for (int spins = 0;; spins++) {
        if (has_unclaimed()) step_aside();
        if (work_off() > 0) spins = 0;
        if (spins < SPINS_BEFORE_SLEEP) {
            pause_briefly();
            continue;
        }
        uint32_t seen = atomic_load(&wakeups);
        atomic_fetch_add(&num_sleeping, 1);
        /* Looked at again after saying so: a caller either sees the sleeper or is seen here. */
        if (!has_unclaimed()) syscall(SYS_futex, &wakeups, FUTEX_WAIT_PRIVATE, seen, 0, 0, 0);
        atomic_fetch_sub(&num_sleeping, 1);
        spins = 0;
    }
    return unused;
}

static void run_jobs(job_type new_run, const void *new_work, int count) {
    /* Another thread's product is in the pool: this one goes on alone. */
    if (count == 1 || num_threads == 1 || atomic_flag_test_and_set(&is_taken)) {
        for (int job = 0; job < count; job++) new_run(new_work, job);
        return;
    }
    static _Thread_local int has_asked;
    if (!has_asked) {
        ask_for_short_slices();
        has_asked = 1;
    }
    run = new_run;
    work = new_work;
    atomic_store(&num_done, 0);
    atomic_store(&caller_core, sched_getcpu());
    uint64_t number = (atomic_load(&list) >> 32) + 1;
    atomic_store(&list, number << 32 | (uint64_t)count << 16);
    if (atomic_load(&num_sleeping) > 0) {
        atomic_fetch_add(&wakeups, 1);
        syscall(SYS_futex, &wakeups, FUTEX_WAKE_PRIVATE, num_threads - 1, 0, 0, 0);
    }
    work_off();
    for (int spins = 0; atomic_load(&num_done) < count; spins++) {
        pause_briefly();
        if (spins > SPINS_BEFORE_YIELD) sched_yield();
    }
    atomic_flag_clear(&is_taken);
}

static void start_threads(int wanted) {
    num_threads = wanted;
    sigset_t all, before;
    sigfillset(&all);
    /* Signals are for the threads that Python knows. */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    for (int i = 1; i < num_threads; i++) {
        pthread_t thread;
        if (pthread_create(&thread, 0, worker, 0) != 0) break;
        pthread_detach(thread);
    }
    pthread_sigmask(SIG_SETMASK, &before, 0);
}
