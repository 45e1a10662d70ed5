/* Preloaded into a server that valgrind runs: its clocks count the processor's time, divided by as much as valgrind slows its
 * instructions. So it does what goes by the time (shares of a turn, syncs of each second, samples) as often per request as
 * it does by itself, whatever else the machine does.
 *
 * Deadlines that it hands to the C library are turned back into real time: by the real clock they lie in the past, and a
 * thread that waits for Python's interpreter lock would spin. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <semaphore.h>
#include <time.h>

enum { SLOWER = 28, CLOCKS = 8, SECOND_NS = 1000000000, SECONDS_SINCE_1970_MIN = 1000000000 };

static int (*real_clock)(clockid_t, struct timespec *);
static long long began_ns[CLOCKS];          /* of each clock, when it was read first; 0: not yet */

static long long ns_of(const struct timespec *at)
{
    return (long long)at->tv_sec * SECOND_NS + at->tv_nsec;
}

static struct timespec timespec_of(long long ns)
{
    struct timespec at = {ns / SECOND_NS, ns % SECOND_NS};
    return at;
}

static long long real_ns(clockid_t id)
{
    struct timespec now = {0, 0};

    if (!real_clock)
        real_clock = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    real_clock(id, &now);
    return ns_of(&now);
}

int clock_gettime(clockid_t id, struct timespec *now)
{
    long long ns = real_ns(id);

    if (id >= 0 && id < CLOCKS && id != CLOCK_PROCESS_CPUTIME_ID && id != CLOCK_THREAD_CPUTIME_ID) {
        long long used_ns = real_ns(CLOCK_PROCESS_CPUTIME_ID);
        if (!began_ns[id])
            began_ns[id] = ns - used_ns / SLOWER;
        ns = began_ns[id] + used_ns / SLOWER;
    }
    *now = timespec_of(ns);
    return 0;
}

static struct timespec real_deadline(clockid_t id, const struct timespec *at)
{
    struct timespec now;

    clock_gettime(id, &now);
    long long left_ns = ns_of(at) - ns_of(&now);
    return timespec_of(real_ns(id) + (left_ns > 0 ? left_ns * SLOWER : 0));
}

/* The clock of a condition cannot be asked for: one of the two counts from 1970, the other from the boot. */
static clockid_t clock_of(const struct timespec *at)
{
    return at->tv_sec > SECONDS_SINCE_1970_MIN ? CLOCK_REALTIME : CLOCK_MONOTONIC;
}

int pthread_cond_timedwait(pthread_cond_t *condition, pthread_mutex_t *mutex, const struct timespec *at)
{
    static int (*real)(pthread_cond_t *, pthread_mutex_t *, const struct timespec *);
    struct timespec deadline = real_deadline(clock_of(at), at);

    if (!real)          /* dlsym may give that of an older layout of conditions */
        real = (int (*)(pthread_cond_t *, pthread_mutex_t *, const struct timespec *))dlvsym(
            RTLD_NEXT, "pthread_cond_timedwait", "GLIBC_2.3.2");
    return real(condition, mutex, &deadline);
}

int sem_clockwait(sem_t *semaphore, clockid_t id, const struct timespec *at)
{
    static int (*real)(sem_t *, clockid_t, const struct timespec *);
    struct timespec deadline = real_deadline(id, at);

    if (!real)
        real = (int (*)(sem_t *, clockid_t, const struct timespec *))dlsym(RTLD_NEXT, "sem_clockwait");
    return real(semaphore, id, &deadline);
}
