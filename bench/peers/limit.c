/* A queue server with everything left out that a benchmark's row does not ask for: the bound of `bench --limit`. What a
 * real server takes longer than this is the price of what it promises; what this takes is the kernel's, mostly.
 *
 *     limit PORT FILE os|always
 *
 * It has one thread and one queue, whatever the key says. It knows two requests of the memcache protocol:
 *
 *     set KEY FLAGS EXPTIME BYTES     STORED
 *     get KEY                         the oldest item, which is gone then, or END
 *     get KEY/close                   END: the item that this client has open is done
 *     get KEY/open                    the oldest item, which this client now has open, or END
 *     get KEY/close/open              both
 *
 * and replies to another line with ERROR. A turn serves all clients that have sent something, appends what has changed
 * to FILE with one write, syncs it if told so, and then sends the replies. Open items do not come back, nothing is read
 * from FILE, and no item expires. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define READY_MAX 512
#define LEAST_ROOM 32768     /* of a client's input before a read */
#define LONGEST_LINE 2048

enum opcode { REMOVED = 1, ADDED = 2, OPENED = 3, CONFIRMED = 6 };

/* A growing text. `from` is where its unread part begins. */
struct text {
    char *at;
    size_t from, end, room;
};

struct item {
    uint32_t size;
    char payload[];
};

/* Items in the order of their arrival: a circle of slots, a power of two of them. */
struct line {
    struct item **slots;
    size_t mask, head, count;
};

struct peer {
    int socket;
    bool is_owed, is_gone;
    struct text in, out;
};

static struct line items;
static struct text changes;
static struct peer *owed[READY_MAX];
static int owed_count;

static void die(const char *what)
{
    fprintf(stderr, "limit: %s: %s\n", what, strerror(errno));
    exit(EXIT_FAILURE);
}

static void *or_die(void *memory)
{
    if (memory == NULL)
        die("memory");
    return memory;
}

/* Has room for `more` bytes, and returns where they go. */
static char *room_for(struct text *text, size_t more)
{
    if (text->room - text->end < more) {
        text->room = text->room + text->room / 2 + more;
        text->at = or_die(realloc(text->at, text->room));
    }
    return text->at + text->end;
}

static void append(struct text *text, const void *bytes, size_t size)
{
    memcpy(room_for(text, size), bytes, size);
    text->end += size;
}

static void push(struct item *item)
{
    if (items.count > items.mask || items.slots == NULL) {
        size_t old = items.slots ? items.mask + 1 : 0, wanted = old ? 2 * old : 1024;
        struct item **wider = or_die(malloc(wanted * sizeof *wider));
        for (size_t n = 0; n < items.count; n++)
            wider[n] = items.slots[(items.head + n) & items.mask];
        free(items.slots);
        items.slots = wider, items.mask = wanted - 1, items.head = 0;
    }
    items.slots[(items.head + items.count++) & items.mask] = item;
}

static struct item *pop(void)
{
    struct item *first = items.slots[items.head];
    items.head = (items.head + 1) & items.mask;
    items.count--;
    return first;
}

/* The changes are written as Kestrel's journals have them, so that as many bytes are written as by a real server. */
static void note_added(const struct item *item)
{
    struct timespec moment;
    clock_gettime(CLOCK_REALTIME_COARSE, &moment);
    uint32_t size = item->size + 16;
    uint64_t added_ms = moment.tv_sec * 1000ull + moment.tv_nsec / 1000000, expires_ms = 0;
    char *to = room_for(&changes, 21 + item->size);
    *to = ADDED;
    memcpy(to + 1, &size, 4);
    memcpy(to + 5, &added_ms, 8);
    memcpy(to + 13, &expires_ms, 8);
    memcpy(to + 21, item->payload, item->size);
    changes.end += 21 + item->size;
}

static void reply_with_next(struct peer *peer, const char *key, size_t key_size, enum opcode how)
{
    if (items.count == 0) {
        append(&peer->out, "END\r\n", 5);
        return;
    }
    struct item *item = pop();
    char *to = room_for(&peer->out, key_size + item->size + 48), *begin = to;
    to = mempcpy(to, "VALUE ", 6);
    to = mempcpy(to, key, key_size);
    to += sprintf(to, " 0 %u\r\n", item->size);
    to = mempcpy(to, item->payload, item->size);
    to = mempcpy(to, "\r\nEND\r\n", 7);
    peer->out.end += to - begin;
    append(&changes, &(char){how}, 1);
    free(item);
}

static void serve_get(struct peer *peer, const char *key, const char *end)
{
    const char *options = memchr(key, '/', end - key);
    size_t key_size = (options ? options : end) - key;
    bool closes = options && memmem(options, end - options, "/close", 6);
    bool opens = options && memmem(options, end - options, "/open", 5);

    if (closes) {
        char record[5] = {CONFIRMED};
        append(&changes, record, sizeof record);
    }
    if (closes && !opens)
        append(&peer->out, "END\r\n", 5);
    else
        reply_with_next(peer, key, key_size, opens ? OPENED : REMOVED);
}

/* Returns the size of the data that a set announces with the last word of its line; -1 if that is no number below 1 GB. */
static long announced(const char *line, const char *end)
{
    const char *digit = end;
    long size = 0, unit = 1;
    while (digit > line && isdigit((unsigned char)digit[-1]) && unit < 1000000000) {
        size += (*--digit - '0') * unit;
        unit *= 10;
    }
    return digit < end && digit[-1] == ' ' ? size : -1;
}

/* Serves one request. Returns its size; 0 if the rest of it is still to come. */
static size_t serve_request(struct peer *peer, const char *line, size_t size)
{
    const char *newline = memchr(line, '\n', size);
    if (newline == NULL)
        return 0;
    size_t taken = newline + 1 - line;
    const char *end = newline > line && newline[-1] == '\r' ? newline - 1 : newline;
    bool is_short = taken <= LONGEST_LINE;

    if (is_short && end - line > 4 && memcmp(line, "get ", 4) == 0) {
        serve_get(peer, line + 4, end);
        return taken;
    }
    long data = is_short && end - line > 4 && memcmp(line, "set ", 4) == 0 ? announced(line, end) : -1;
    if (data < 0) {
        append(&peer->out, "ERROR\r\n", 7);
        return taken;
    }
    if (size < taken + data + 2)
        return 0;
    struct item *item = or_die(malloc(sizeof *item + data));
    item->size = data;
    memcpy(item->payload, line + taken, data);
    push(item);
    note_added(item);
    append(&peer->out, "STORED\r\n", 8);
    return taken + data + 2;
}

static void hear(struct peer *peer)
{
    struct text *in = &peer->in;
    room_for(in, LEAST_ROOM);
    ssize_t came = recv(peer->socket, in->at + in->end, in->room - in->end, MSG_DONTWAIT);
    if (came < 0 && errno == EAGAIN)
        return;
    if (came <= 0) {
        peer->is_gone = true;
    } else {
        in->end += came;
        for (size_t taken; (taken = serve_request(peer, in->at + in->from, in->end - in->from)) > 0;)
            in->from += taken;
        if (in->from < in->end)
            memmove(in->at, in->at + in->from, in->end - in->from);
        in->end -= in->from, in->from = 0;
    }
    if ((peer->out.end || peer->is_gone) && !peer->is_owed) {
        peer->is_owed = true;
        owed[owed_count++] = peer;
    }
}

static void commit(int file, bool syncs)
{
    if (changes.end == 0)
        return;
    while (changes.from < changes.end) {
        ssize_t gone = write(file, changes.at + changes.from, changes.end - changes.from);
        if (gone < 0)
            die("write");
        changes.from += gone;
    }
    changes.from = changes.end = 0;
    if (syncs && fdatasync(file) < 0)
        die("fdatasync");
}

/* A client that does not read is waited for: it measures this server, and is the only one that this harms. */
static void send_all(struct peer *peer)
{
    struct text *out = &peer->out;
    while (!peer->is_gone && out->from < out->end) {
        ssize_t gone = send(peer->socket, out->at + out->from, out->end - out->from, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (gone > 0)
            out->from += gone;
        else if (errno == EAGAIN)
            poll(&(struct pollfd){.fd = peer->socket, .events = POLLOUT}, 1, -1);
        else
            peer->is_gone = true;
    }
    out->from = out->end = 0;
}

static void reply_to_all(void)
{
    for (int n = 0; n < owed_count; n++) {
        struct peer *peer = owed[n];
        send_all(peer);
        peer->is_owed = false;
        if (peer->is_gone) {
            close(peer->socket);
            free(peer->in.at);
            free(peer->out.at);
            free(peer);
        }
    }
    owed_count = 0;
}

static void watch(int poller, int fd, void *what)
{
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = what};
    if (epoll_ctl(poller, EPOLL_CTL_ADD, fd, &event) < 0)
        die("epoll_ctl");
}

static void welcome(int poller, int listener)
{
    for (int fd; (fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC)) >= 0;) {
        struct peer *peer = or_die(calloc(1, sizeof *peer));
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
        peer->socket = fd;
        watch(poller, fd, peer);
    }
}

static int listen_on(uint16_t port)
{
    struct sockaddr_in loopback = {.sin_family = AF_INET, .sin_port = htons(port)};
    loopback.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0)
        die("socket");
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &(int){1}, sizeof(int));
    if (bind(fd, (struct sockaddr *)&loopback, sizeof loopback) < 0)
        die("bind");
    if (listen(fd, SOMAXCONN) < 0)
        die("listen");
    return fd;
}

int main(int count, char **words)
{
    if (count != 4 || (strcmp(words[3], "os") != 0 && strcmp(words[3], "always") != 0)) {
        fprintf(stderr, "usage: limit PORT FILE os|always\n");
        return 2;
    }
    bool syncs = strcmp(words[3], "always") == 0;
    int file = open(words[2], O_WRONLY | O_APPEND | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (file < 0)
        die(words[2]);
    int listener = listen_on(atoi(words[1])), poller = epoll_create1(EPOLL_CLOEXEC);
    if (poller < 0)
        die("epoll_create1");
    watch(poller, listener, NULL);
    for (struct epoll_event ready[READY_MAX];;) {
        int found = epoll_wait(poller, ready, READY_MAX, -1);
        for (int n = 0; n < found; n++) {
            if (ready[n].data.ptr == NULL)
                welcome(poller, listener);
            else
                hear(ready[n].data.ptr);
        }
        commit(file, syncs);
        reply_to_all();
    }
}
