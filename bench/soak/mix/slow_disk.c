/* Preloaded into a server: while the file that SLOW_DISK names exists, each sync of a file, and each
   write that is one, waits for as many milliseconds as that file says. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

static void wait_if_slow(void) {
    const char *name = getenv("SLOW_DISK");
    char text[16] = {0};
    int fd = name ? open(name, O_RDONLY | O_CLOEXEC) : -1;
    if (fd < 0)
        return;
    ssize_t size = read(fd, text, sizeof text - 1);
    close(fd);
    long ms = size > 0 ? atol(text) : 0;
    struct timespec pause = {ms / 1000, ms % 1000 * 1000000};
    nanosleep(&pause, NULL);
}

#define REAL(name, ...) ((int (*)(__VA_ARGS__))dlsym(RTLD_NEXT, name))

int fsync(int fd) { wait_if_slow(); return REAL("fsync", int)(fd); }
int fdatasync(int fd) { wait_if_slow(); return REAL("fdatasync", int)(fd); }
int syncfs(int fd) { wait_if_slow(); return REAL("syncfs", int)(fd); }

ssize_t pwrite64(int fd, const void *data, size_t size, off64_t at) {
    if (fcntl(fd, F_GETFL) & O_DSYNC)
        wait_if_slow();
    return ((ssize_t (*)(int, const void *, size_t, off64_t))dlsym(RTLD_NEXT, "pwrite64"))(fd, data, size, at);
}

ssize_t pwrite(int fd, const void *data, size_t size, off_t at) { return pwrite64(fd, data, size, at); }
