/* Preloaded into a server: each sync takes a while, and a line in a file says that it has begun. A write past the page
   cache (O_DSYNC) counts as a sync.

   SLOW_SYNC_MS     how long each takes
   SLOW_SYNC_LOG    the file; syncs are slow while it is there */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define REAL(type, name, ...) ((type(*)(__VA_ARGS__))dlsym(RTLD_NEXT, name))

static void wait_for(const char *call) {
    const char *path = getenv("SLOW_SYNC_LOG"), *ms = getenv("SLOW_SYNC_MS");
    if (!path || !ms)
        return;
    char line[64];
    int size = snprintf(line, sizeof line, "%s\n", call), fd = open(path, O_WRONLY | O_APPEND | O_CLOEXEC);
    if (fd < 0)
        return;
    if (write(fd, line, (size_t)size) != size)
        abort();
    close(fd);
    long long ns = atoll(ms) * 1000000;
    struct timespec left = {ns / 1000000000, ns % 1000000000};
    while (nanosleep(&left, &left)) {
    }
}

int fsync(int fd) {
    wait_for("fsync");
    return REAL(int, "fsync", int)(fd);
}

int fdatasync(int fd) {
    wait_for("fdatasync");
    return REAL(int, "fdatasync", int)(fd);
}

int syncfs(int fd) {
    wait_for("syncfs");
    return REAL(int, "syncfs", int)(fd);
}

#define WRITE(name)                                                                                                    \
    ssize_t name(int fd, const void *data, size_t size, off_t at) {                                                    \
        if (fcntl(fd, F_GETFL) & O_DSYNC)                                                                              \
            wait_for("write");                                                                                         \
        return REAL(ssize_t, #name, int, const void *, size_t, off_t)(fd, data, size, at);                             \
    }
WRITE(pwrite)
WRITE(pwrite64)
