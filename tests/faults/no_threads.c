/* Preloaded into a server: it may start as many threads as THREADS_MAX says; a further one is refused with EAGAIN, as
   under RLIMIT_NPROC and under a control group's limit of processes. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>

typedef int (*create)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);

static int started;

int pthread_create(pthread_t *thread, const pthread_attr_t *how, void *(*work)(void *), void *given) {
    const char *most = getenv("THREADS_MAX");
    if (most && started >= atoi(most))
        return EAGAIN;
    started++;
    return ((create)dlsym(RTLD_NEXT, "pthread_create"))(thread, how, work, given);
}
