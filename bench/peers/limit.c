/* The least that one thread can do for memcache's set and get of one queue, as a bound for what any server can reach:
 * epoll, recv, items in a ring, one append to a file a turn (and one fdatasync under "always"), send. It has no names,
 * limits, expiry, statistics or recovery, and keeps nothing of an open read but its record.
 *
 *     limit PORT FILE os|always
 *
 * Requests: "set QUEUE FLAGS EXPTIME BYTES", "get QUEUE", "get QUEUE/close/open". Anything else is an ERROR. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { EVENTS = 1024, RING = 1 << 22, RECV_BYTES = 1 << 16 };

struct bytes {
    char *data;
    size_t length, capacity;
};

struct item {
    uint32_t length;
    char data[];
};

struct client {
    int fd;
    int is_answered;          /* it is in `answered` */
    struct bytes in, out;
};

static struct item **ring;
static uint64_t oldest, newest;
static struct bytes journal;
static struct client *answered[EVENTS];
static int answered_count;

static void fail(const char *what)
{
    perror(what);
    exit(1);
}

static void reserve(struct bytes *to, size_t more)
{
    if (to->length + more <= to->capacity)
        return;
    to->capacity = 2 * (to->length + more);
    to->data = realloc(to->data, to->capacity);
    if (!to->data)
        fail("realloc");
}

static void add(struct bytes *to, const void *data, size_t length)
{
    reserve(to, length);
    memcpy(to->data + to->length, data, length);
    to->length += length;
}

/* As Kestrel's ADDX is laid out: opcode, length with expiry and time, time of adding, expiry. */
static void record_added(const struct item *item)
{
    struct timespec now;
    char head[21] = {2};
    uint32_t length = item->length + 16;

    clock_gettime(CLOCK_REALTIME_COARSE, &now);
    int64_t now_ms = now.tv_sec * 1000 + now.tv_nsec / 1000000;
    memcpy(head + 1, &length, sizeof length);
    memcpy(head + 5, &now_ms, sizeof now_ms);
    add(&journal, head, sizeof head);
    add(&journal, item->data, item->length);
}

static void put(struct client *client, const char *data, size_t length)
{
    struct item *item = malloc(sizeof *item + length);
    if (!item)
        fail("malloc");
    item->length = length;
    memcpy(item->data, data, length);
    ring[newest++ % RING] = item;
    record_added(item);
    add(&client->out, "STORED\r\n", 8);
}

static void get(struct client *client, const char *key, size_t length)
{
    int closes = memmem(key, length, "/close", 6) != NULL, opens = memmem(key, length, "/open", 5) != NULL;
    size_t name = 0;
    char head[64];

    if (closes)
        add(&journal, "\6\0\0\0", 5);
    if (oldest == newest || (closes && !opens)) {
        add(&client->out, "END\r\n", 5);
        return;
    }
    while (name < length && key[name] != '/' && key[name] != '\r')
        name++;
    struct item *item = ring[oldest++ % RING];
    int head_length = snprintf(head, sizeof head, "VALUE %.*s 0 %u\r\n", (int)name, key, item->length);
    add(&client->out, head, head_length);
    add(&client->out, item->data, item->length);
    add(&client->out, "\r\nEND\r\n", 7);
    add(&journal, opens ? "\3" : "\1", 1);
    free(item);
}

/* Serves the first request of `in`, if it is whole; its bytes, or 0. */
static size_t serve_one(struct client *client, char *in, size_t length)
{
    char *end = memchr(in, '\n', length);
    if (!end)
        return 0;
    size_t line = end + 1 - in;
    if (line > 4 && !memcmp(in, "set ", 4)) {
        char *number = end;
        while (number[-1] != ' ')
            number--;
        size_t data = strtoul(number, NULL, 10);
        if (length < line + data + 2)
            return 0;
        put(client, end + 1, data);
        return line + data + 2;
    }
    if (line > 4 && !memcmp(in, "get ", 4))
        get(client, in + 4, line - 4);
    else
        add(&client->out, "ERROR\r\n", 7);
    return line;
}

static void drop(struct client *client)
{
    close(client->fd);
    free(client->in.data);
    free(client->out.data);
    free(client);
}

static void serve(struct client *client)
{
    size_t taken = 0, more;

    reserve(&client->in, RECV_BYTES);
    ssize_t got = recv(client->fd, client->in.data + client->in.length, client->in.capacity - client->in.length, 0);
    if (got <= 0) {
        drop(client);
        return;
    }
    client->in.length += got;
    while ((more = serve_one(client, client->in.data + taken, client->in.length - taken)) > 0)
        taken += more;
    client->in.length -= taken;
    memmove(client->in.data, client->in.data + taken, client->in.length);
    if (client->out.length && !client->is_answered) {
        client->is_answered = 1;
        answered[answered_count++] = client;
    }
}

static void write_journal(int file, int always)
{
    for (size_t written = 0; written < journal.length;) {
        ssize_t more = write(file, journal.data + written, journal.length - written);
        if (more <= 0)
            fail("write");
        written += more;
    }
    if (journal.length && always && fdatasync(file))
        fail("fdatasync");
    journal.length = 0;
}

static void answer(void)
{
    for (int at = 0; at < answered_count; at++) {
        struct client *client = answered[at];
        /* What does not fit into the socket is lost: the clients of a measurement read. */
        if (send(client->fd, client->out.data, client->out.length, MSG_NOSIGNAL) != (ssize_t)client->out.length)
            fprintf(stderr, "limit: a client did not read\n");
        client->out.length = 0;
        client->is_answered = 0;
    }
    answered_count = 0;
}

static void admit(int poller, int listener)
{
    int fd, on = 1;

    while ((fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK)) >= 0) {
        struct client *client = calloc(1, sizeof *client);
        if (!client)
            fail("calloc");
        client->fd = fd;
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        struct epoll_event wanted = {.events = EPOLLIN, .data.ptr = client};
        if (epoll_ctl(poller, EPOLL_CTL_ADD, fd, &wanted))
            fail("epoll_ctl");
    }
}

static int listening(int port)
{
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), on = 1;
    struct sockaddr_in address = {
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};

    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (listener < 0 || bind(listener, (struct sockaddr *)&address, sizeof address) || listen(listener, 1024))
        fail("listen");
    return listener;
}

int main(int argc, char **argv)
{
    static struct epoll_event events[EVENTS];

    if (argc != 4) {
        fprintf(stderr, "usage: limit PORT FILE os|always\n");
        return 2;
    }
    int file = open(argv[2], O_CREAT | O_TRUNC | O_WRONLY | O_APPEND | O_CLOEXEC, 0600);
    int listener = listening(atoi(argv[1])), poller = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event wanted = {.events = EPOLLIN, .data.ptr = NULL};
    ring = malloc(RING * sizeof *ring);
    if (file < 0 || poller < 0 || !ring || epoll_ctl(poller, EPOLL_CTL_ADD, listener, &wanted))
        fail("limit");
    for (;;) {
        int count = epoll_wait(poller, events, EVENTS, -1);
        for (int at = 0; at < count; at++) {
            if (events[at].data.ptr)
                serve(events[at].data.ptr);
            else
                admit(poller, listener);
        }
        write_journal(file, !strcmp(argv[3], "always"));
        answer();
    }
}
