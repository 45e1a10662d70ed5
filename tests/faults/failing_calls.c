/* Preloaded into a server: lets some calls of the C library on some files fail, or kills the process there.

   FAULT_CALLS   which: "fsync fdatasync syncfs write pwrite rename link unlink ftruncate open read fallocate mkdir list
                 stat statfs flock", any of them; a write past the page cache by the kernel's AIO is a pwrite
   FAULT_PATH    only on paths that contain this; with a $ at its end: that end with it
   FAULT_SWITCH  a file: calls fail only while it is there; its lines are those two settings, and FAULT_ERRNO if it has
                 a third
   FAULT_AFTER   so many such calls pass first
   FAULT_TIMES   then so many fail, 1 unless given
   FAULT_ERRNO   how they fail, EIO unless given; 0: the process is killed before the call
   FAULT_SHORT   a write has written so many bytes when it fails
   FAULT_TRACE   a file: each call on a path is added to it, a line each, while it is there */

#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/aio_abi.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

#define REAL(type, name, ...) ((type(*)(__VA_ARGS__))dlsym(RTLD_NEXT, name))
#define RAW(...) REAL(long, "syscall", long, ...)(__VA_ARGS__)

static atomic_long seen;
static int aio_error; /* of the request under way */

static long setting(const char *name, long otherwise) {
    const char *text = getenv(name);
    return text ? atol(text) : otherwise;
}

/* Whether the switch is on, if there is one; its lines. */
static int is_on(char *text, size_t size, const char **calls, const char **part, const char **number) {
    const char *path = getenv("FAULT_SWITCH");
    if (!path)
        return 1;
    int before = errno, fd = (int)RAW(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC);
    long count = fd < 0 ? -1 : RAW(SYS_read, fd, text, size - 1);
    if (fd >= 0)
        RAW(SYS_close, fd);
    errno = before;
    if (count <= 0)
        return 0;
    text[count] = 0;
    char *end = strchr(text, '\n'), *last = end ? strchr(end + 1, '\n') : 0;
    if (!last)
        return 0;
    *end = *last = 0;
    *calls = text, *part = end + 1, *number = last[1] ? last + 1 : 0;
    return 1;
}

/* Add a call to the trace, if there is one. */
static void trace(const char *call, const char *path) {
    const char *name = getenv("FAULT_TRACE");
    if (!name || !path)
        return;
    char line[PATH_MAX + 32];
    int before = errno, fd = (int)RAW(SYS_openat, AT_FDCWD, name, O_WRONLY | O_APPEND | O_CLOEXEC);
    int size = snprintf(line, sizeof line, "%s %s\n", call, path);
    if (fd >= 0) {
        RAW(SYS_write, fd, line, size < (int)sizeof line ? size : (int)sizeof line - 1);
        RAW(SYS_close, fd);
    }
    errno = before;
}

/* Whether `path` is one that `part` tells. */
static int is_told(const char *part, const char *path) {
    size_t size = strlen(part), whole = strlen(path);
    if (!size || part[size - 1] != '$')
        return strstr(path, part) != 0;
    return whole >= size - 1 && !strncmp(path + whole - (size - 1), part, size - 1);
}

/* Whether this call is to fail; errno is set then. */
static int strikes(const char *call, const char *path) {
    const char *calls = getenv("FAULT_CALLS"), *part = getenv("FAULT_PATH"), *told = 0;
    char word[32], list[1026], text[1024];
    trace(call, path);
    if (!is_on(text, sizeof text, &calls, &part, &told))
        return 0;
    if (!calls || !path || (part && !is_told(part, path)))
        return 0;
    snprintf(word, sizeof word, " %s ", call);
    snprintf(list, sizeof list, " %s ", calls);
    if (!strstr(list, word))
        return 0;
    long number = atomic_fetch_add(&seen, 1) - setting("FAULT_AFTER", 0);
    if (number < 0 || number >= setting("FAULT_TIMES", 1))
        return 0;
    errno = told ? atoi(told) : (int)setting("FAULT_ERRNO", EIO);
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

#define OPEN(name)                                                                                                     \
    int name(const char *path, int flags, ...) {                                                                       \
        va_list list;                                                                                                  \
        va_start(list, flags);                                                                                         \
        mode_t mode = va_arg(list, mode_t);                                                                            \
        va_end(list);                                                                                                  \
        return strikes("open", path) ? -1 : REAL(int, #name, const char *, int, ...)(path, flags, mode);               \
    }
OPEN(open)
OPEN(open64)

#define MOVE(name, word, kind)                                                                                         \
    ssize_t name(int fd, kind data, size_t size, off_t at) {                                                           \
        return strikes_fd(word, fd) ? -1 : REAL(ssize_t, #name, int, kind, size_t, off_t)(fd, data, size, at);         \
    }
MOVE(pread, "read", void *)
MOVE(pread64, "read", void *)
MOVE(pwrite, "pwrite", const void *)
MOVE(pwrite64, "pwrite", const void *)

ssize_t read(int fd, void *data, size_t size) {
    return strikes_fd("read", fd) ? -1 : REAL(ssize_t, "read", int, void *, size_t)(fd, data, size);
}

int link(const char *path, const char *other) {
    return strikes("link", other) ? -1 : REAL(int, "link", const char *, const char *)(path, other);
}

int mkdir(const char *path, mode_t mode) {
    return strikes("mkdir", path) ? -1 : REAL(int, "mkdir", const char *, mode_t)(path, mode);
}

int fallocate(int fd, int mode, off_t at, off_t size) {
    return strikes_fd("fallocate", fd) ? -1 : REAL(int, "fallocate", int, int, off_t, off_t)(fd, mode, at, size);
}

int posix_fallocate(int fd, off_t at, off_t size) {
    return strikes_fd("fallocate", fd) ? errno : REAL(int, "posix_fallocate", int, off_t, off_t)(fd, at, size);
}
int posix_fallocate64(int fd, off_t at, off_t size) { return posix_fallocate(fd, at, size); }

#define STAT(name)                                                                                                     \
    int name(const char *path, struct stat *found) {                                                                   \
        return strikes("stat", path) ? -1 : REAL(int, #name, const char *, struct stat *)(path, found);                \
    }
STAT(stat)
STAT(lstat)

/* The same functions under the names that a program with 64-bit offsets calls them by. */
int stat64(const char *path, struct stat64 *found) { return stat(path, (struct stat *)found); }
int lstat64(const char *path, struct stat64 *found) { return lstat(path, (struct stat *)found); }

int statvfs(const char *path, struct statvfs *found) {
    return strikes("statfs", path) ? -1 : REAL(int, "statvfs", const char *, struct statvfs *)(path, found);
}
int statvfs64(const char *path, struct statvfs64 *found) { return statvfs(path, (struct statvfs *)found); }

int flock(int fd, int how) { return strikes_fd("flock", fd) ? -1 : REAL(int, "flock", int, int)(fd, how); }

DIR *opendir(const char *path) { return strikes("list", path) ? 0 : REAL(DIR *, "opendir", const char *)(path); }

long syscall(long number, ...) {
    long a[6];
    va_list list;
    va_start(list, number);
    for (int i = 0; i < 6; i++)
        a[i] = va_arg(list, long);
    va_end(list);
    if (number == SYS_io_submit)
        aio_error = strikes_fd("pwrite", (int)(*(struct iocb **)a[2])->aio_fildes) ? errno : 0;
    long result = RAW(number, a[0], a[1], a[2], a[3], a[4], a[5]);
    if (number == SYS_io_getevents && result == 1 && aio_error)
        ((struct io_event *)a[3])->res = -aio_error;
    return result;
}
