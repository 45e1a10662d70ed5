/* Preloaded into a server: writes down, in their order, what it does to the files below RECORD_ROOT and what it sends
   to clients, into the file RECORD_TO. tests/crash/recording.py reads it.

   O fd flags path   opened                     C fd            closed
   W fd at size      written, then the bytes    T fd size       cut
   B n fd            a sync begins (fd -1: of the whole file system)
   E n               it has ended well          D fd at size    a write past the page cache is on the disk
   M path / path     renamed                    U path          removed
   L path / path     a second name              K path          a folder made
   R fd size         received, its beginning    S fd size       about to be sent, the bytes */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/aio_abi.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

#define REAL(type, name, ...) ((type(*)(__VA_ARGS__))dlsym(RTLD_NEXT, name))
#define FILES 4096

static pthread_mutex_t lock = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
static int log_fd = -1;
static const char *root;
static char watched[FILES];
static int flags_of[FILES];
static long syncs;
static struct iocb under_way;

__attribute__((constructor)) static void begin(void) {
    root = getenv("RECORD_ROOT");
    if (root && getenv("RECORD_TO"))
        log_fd = syscall(SYS_openat, AT_FDCWD, getenv("RECORD_TO"), O_WRONLY | O_CREAT | O_APPEND, 0600);
}

static void put(const void *bytes, size_t size) {
    const char *at = bytes;
    while (size) {
        ssize_t done = REAL(ssize_t, "write", int, const void *, size_t)(log_fd, at, size);
        if (done <= 0)
            abort();
        at += done, size -= done;
    }
}

__attribute__((format(printf, 1, 2))) static void say(const char *form, ...) {
    char line[3 * PATH_MAX];
    va_list list;
    va_start(list, form);
    int size = vsnprintf(line, sizeof line, form, list);
    va_end(list);
    put(line, size);
}

static int is_below(const char *path) { return log_fd >= 0 && path && !strncmp(path, root, strlen(root)); }
static int is_watched(int fd) { return log_fd >= 0 && fd >= 0 && fd < FILES && watched[fd]; }

static int opened(int fd, const char *path, int flags) {
    if (fd >= 0 && fd < FILES && is_below(path)) {
        watched[fd] = 1;
        flags_of[fd] = flags;
        say("O %d %d %s\n", fd, flags, path);
    }
    return fd;
}

#define OPEN(name)                                                                                                     \
    int name(const char *path, int flags, ...) {                                                                       \
        va_list list;                                                                                                  \
        va_start(list, flags);                                                                                         \
        mode_t mode = va_arg(list, mode_t);                                                                            \
        va_end(list);                                                                                                  \
        pthread_mutex_lock(&lock);                                                                                     \
        int fd = opened(REAL(int, #name, const char *, int, ...)(path, flags, mode), path, flags);                     \
        pthread_mutex_unlock(&lock);                                                                                   \
        return fd;                                                                                                     \
    }
OPEN(open)
OPEN(open64)

int close(int fd) {
    pthread_mutex_lock(&lock);
    if (is_watched(fd)) {
        watched[fd] = 0;
        say("C %d\n", fd);
    }
    int result = REAL(int, "close", int)(fd);
    pthread_mutex_unlock(&lock);
    return result;
}

static void wrote(int fd, long at, const void *data, ssize_t size) {
    if (size > 0) {
        say("W %d %ld %zd\n", fd, at, size);
        put(data, size);
    }
}

ssize_t write(int fd, const void *data, size_t size) {
    if (!is_watched(fd))
        return REAL(ssize_t, "write", int, const void *, size_t)(fd, data, size);
    pthread_mutex_lock(&lock);
    ssize_t done = REAL(ssize_t, "write", int, const void *, size_t)(fd, data, size);
    struct stat status;
    fstat(fd, &status);
    wrote(fd, (flags_of[fd] & O_APPEND ? status.st_size : lseek(fd, 0, SEEK_CUR)) - done, data, done);
    pthread_mutex_unlock(&lock);
    return done;
}

#define PWRITE(name)                                                                                                   \
    ssize_t name(int fd, const void *data, size_t size, off_t at) {                                                    \
        ssize_t (*real)(int, const void *, size_t, off_t) = REAL(ssize_t, #name, int, const void *, size_t, off_t);    \
        if (!is_watched(fd))                                                                                           \
            return real(fd, data, size, at);                                                                           \
        pthread_mutex_lock(&lock);                                                                                     \
        wrote(fd, at, data, size);                                                                                     \
        pthread_mutex_unlock(&lock);                                                                                   \
        ssize_t done = real(fd, data, size, at);                                                                       \
        pthread_mutex_lock(&lock);                                                                                     \
        if (done > 0 && flags_of[fd] & O_DSYNC)                                                                        \
            say("D %d %ld %zd\n", fd, (long)at, done);                                                                 \
        pthread_mutex_unlock(&lock);                                                                                   \
        return done;                                                                                                   \
    }
PWRITE(pwrite)
PWRITE(pwrite64)

/* AIO: a write is there from its submission on, and on the disk once its end has been fetched. */
long syscall(long number, ...) {
    long a[6];
    va_list list;
    va_start(list, number);
    for (int i = 0; i < 6; i++)
        a[i] = va_arg(list, long);
    va_end(list);
    if (number == SYS_io_submit && log_fd >= 0) {
        under_way = **(struct iocb **)a[2];
        pthread_mutex_lock(&lock);
        wrote(under_way.aio_fildes, under_way.aio_offset, (void *)under_way.aio_buf, under_way.aio_nbytes);
        pthread_mutex_unlock(&lock);
    }
    long result = REAL(long, "syscall", long, ...)(number, a[0], a[1], a[2], a[3], a[4], a[5]);
    if (number == SYS_io_getevents && result == 1 && log_fd >= 0 && ((struct io_event *)a[3])->res > 0) {
        pthread_mutex_lock(&lock);
        say("D %d %lld %lld\n", under_way.aio_fildes, under_way.aio_offset, ((struct io_event *)a[3])->res);
        pthread_mutex_unlock(&lock);
    }
    return result;
}

static int synced(const char *name, int fd, int is_all) {
    if (log_fd < 0 || (!is_all && !is_watched(fd)))
        return REAL(int, name, int)(fd);
    pthread_mutex_lock(&lock);
    long number = ++syncs;
    say("B %ld %d\n", number, is_all ? -1 : fd);
    pthread_mutex_unlock(&lock);
    int result = REAL(int, name, int)(fd);
    pthread_mutex_lock(&lock);
    if (!result)
        say("E %ld\n", number);
    pthread_mutex_unlock(&lock);
    return result;
}
int fsync(int fd) { return synced("fsync", fd, 0); }
int fdatasync(int fd) { return synced("fdatasync", fd, 0); }
int syncfs(int fd) { return synced("syncfs", fd, 1); }

#define CUT(name)                                                                                                      \
    int name(int fd, off_t size) {                                                                                     \
        pthread_mutex_lock(&lock);                                                                                     \
        int result = REAL(int, #name, int, off_t)(fd, size);                                                           \
        if (!result && is_watched(fd))                                                                                 \
            say("T %d %ld\n", fd, (long)size);                                                                         \
        pthread_mutex_unlock(&lock);                                                                                   \
        return result;                                                                                                 \
    }
CUT(ftruncate)
CUT(ftruncate64)

#define NAMED(name, letter)                                                                                            \
    int name(const char *from, const char *to) {                                                                       \
        pthread_mutex_lock(&lock);                                                                                     \
        int result = REAL(int, #name, const char *, const char *)(from, to);                                           \
        if (!result && is_below(from))                                                                                 \
            say(letter " %s\n%s\n", from, to);                                                                         \
        pthread_mutex_unlock(&lock);                                                                                   \
        return result;                                                                                                 \
    }
NAMED(rename, "M")
NAMED(link, "L")

int unlink(const char *path) {
    pthread_mutex_lock(&lock);
    int result = REAL(int, "unlink", const char *)(path);
    if (!result && is_below(path))
        say("U %s\n", path);
    pthread_mutex_unlock(&lock);
    return result;
}

int mkdir(const char *path, mode_t mode) {
    pthread_mutex_lock(&lock);
    int result = REAL(int, "mkdir", const char *, mode_t)(path, mode);
    if (!result && is_below(path))
        say("K %s\n", path);
    pthread_mutex_unlock(&lock);
    return result;
}

static void heard(int fd, const void *data, ssize_t size) {
    if (log_fd < 0 || size <= 0)
        return;
    pthread_mutex_lock(&lock);
    say("R %d %zd\n", fd, size < 32 ? size : 32);
    put(data, size < 32 ? size : 32);
    pthread_mutex_unlock(&lock);
}

ssize_t recv(int fd, void *data, size_t size, int flags) {
    ssize_t got = REAL(ssize_t, "recv", int, void *, size_t, int)(fd, data, size, flags);
    heard(fd, data, got);
    return got;
}

static void sends(int fd, const void *data, size_t size) {
    if (log_fd < 0)
        return;
    pthread_mutex_lock(&lock);
    say("S %d %zd\n", fd, (ssize_t)size);
    put(data, size);
    pthread_mutex_unlock(&lock);
}

ssize_t send(int fd, const void *data, size_t size, int flags) {
    sends(fd, data, size);
    return REAL(ssize_t, "send", int, const void *, size_t, int)(fd, data, size, flags);
}

ssize_t sendmsg(int fd, const struct msghdr *message, int flags) {
    for (size_t i = 0; i < message->msg_iovlen; i++)
        sends(fd, message->msg_iov[i].iov_base, message->msg_iov[i].iov_len);
    return REAL(ssize_t, "sendmsg", int, const struct msghdr *, int)(fd, message, flags);
}
