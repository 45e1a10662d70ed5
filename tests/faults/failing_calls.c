/* Preloaded into a server: lets some calls of the C library on some files fail, or kills the process there.

   FAULT_CALLS   which: "fsync fdatasync syncfs write rename unlink ftruncate", any of them
   FAULT_PATH    only on paths that contain this
   FAULT_AFTER   so many such calls pass first
   FAULT_TIMES   then so many fail, 1 unless given
   FAULT_ERRNO   how they fail, EIO unless given; 0: the process is killed before the call
   FAULT_SHORT   a write has written so many bytes when it fails */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

static atomic_long seen;

static long setting(const char *name, long otherwise) {
    const char *text = getenv(name);
    return text ? atol(text) : otherwise;
}

/* Whether this call is to fail; errno is set then. */
static int strikes(const char *call, const char *path) {
    const char *calls = getenv("FAULT_CALLS"), *part = getenv("FAULT_PATH");
    char word[32], list[256];
    if (!calls || !path || (part && !strstr(path, part)))
        return 0;
    snprintf(word, sizeof word, " %s ", call);
    snprintf(list, sizeof list, " %s ", calls);
    if (!strstr(list, word))
        return 0;
    long number = atomic_fetch_add(&seen, 1) - setting("FAULT_AFTER", 0);
    if (number < 0 || number >= setting("FAULT_TIMES", 1))
        return 0;
    errno = (int)setting("FAULT_ERRNO", EIO);
    if (!errno)
        kill(getpid(), SIGKILL);
    return 1;
}

static int strikes_fd(const char *call, int fd) {
    char link[64], path[PATH_MAX];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0)
        return 0;
    path[length] = 0;
    return strikes(call, path);
}

#define REAL(type, name, ...) ((type(*)(__VA_ARGS__))dlsym(RTLD_NEXT, name))

int fsync(int fd) { return strikes_fd("fsync", fd) ? -1 : REAL(int, "fsync", int)(fd); }
int fdatasync(int fd) { return strikes_fd("fdatasync", fd) ? -1 : REAL(int, "fdatasync", int)(fd); }
int syncfs(int fd) { return strikes_fd("syncfs", fd) ? -1 : REAL(int, "syncfs", int)(fd); }
int ftruncate(int fd, off_t size) { return strikes_fd("ftruncate", fd) ? -1 : REAL(int, "ftruncate", int, off_t)(fd, size); }
int ftruncate64(int fd, off_t size) { return ftruncate(fd, size); }
int unlink(const char *path) { return strikes("unlink", path) ? -1 : REAL(int, "unlink", const char *)(path); }

int rename(const char *old, const char *new) {
    return strikes("rename", old) ? -1 : REAL(int, "rename", const char *, const char *)(old, new);
}

ssize_t write(int fd, const void *data, size_t size) {
    ssize_t (*real)(int, const void *, size_t) = REAL(ssize_t, "write", int, const void *, size_t);
    if (!strikes_fd("write", fd))
        return real(fd, data, size);
    int number = errno;
    size_t part = (size_t)setting("FAULT_SHORT", 0);
    if (part && part < size)
        real(fd, data, part);
    errno = number;
    return -1;
}
