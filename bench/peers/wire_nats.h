/*
 * NATS with JetStream, for queue_load.c, which includes this file: a text protocol.
 *
 * A queue is a stream of its name with one subject, kept in files, with work-queue
 * retention (an acknowledged message is gone), and one durable pull consumer that
 * wants each message acknowledged. What a connection is sent comes on three
 * subscriptions, so that the number in an answer tells what it answers: acknowledgements
 * of puts, items, and answers to acknowledgements.
 *
 * put       PUB QUEUE INBOX N, answered by the stream: {"stream":...,"seq":...}
 * get       PUB $JS.API.CONSUMER.MSG.NEXT... with the number of items wanted; then
 *           PUB $JS.ACK..., sent with the next get, which is not answered
 * --reliable  the acknowledgement asks for an answer, and has one before the run ends
 */

#define NATS_CONSUMER "load"

static const char nats_sids[] = "\1\2\3";     /* subscription of R_PUT, R_GET, R_ACK */

/* A line without its CR LF; what does not fit is cut off. */
static void hear_line(int fd, char *line, size_t size)
{
    size_t n = 0;
    for (char b = 0; b != '\n';) {
        hear(fd, &b, 1);
        if (b != '\r' && b != '\n' && n + 1 < size)
            line[n++] = b;
    }
    line[n] = 0;
}

/* Before the clock starts: a request of JetStream's own, which must not be refused. */
static void nats_ask(int fd, int id, const char *subject, const char *json)
{
    char line[4096], *size;
    int n = snprintf(line, sizeof line, "PUB %s _I.%d.%d.a %zu\r\n%s\r\n", subject, (int)getpid(), id,
                     strlen(json), json);
    tell(fd, line, (size_t)n);
    do {
        hear_line(fd, line, sizeof line);
    } while (strncmp(line, "MSG ", 4) && strncmp(line, "HMSG ", 5));
    size = strrchr(line, ' ');
    long left = atol(size) + 2;
    if (left < 2 || left > (long)sizeof line - 1)
        die("set-up: %s", line);
    hear(fd, line, (size_t)left);
    line[left] = 0;
    if (strstr(line, "\"error\"") || strstr(line, "NATS/1.0 "))
        die("set-up: %s: %s", subject, line);
}

static void nats_create(int fd, int id, const char *queue, bool gets)
{
    char subject[256], json[512];
    snprintf(subject, sizeof subject, "$JS.API.STREAM.CREATE.%s", queue);
    snprintf(json, sizeof json, "{\"name\":\"%s\",\"subjects\":[\"%s\"],\"retention\":\"workqueue\","
             "\"storage\":\"file\",\"num_replicas\":1}", queue, queue);
    nats_ask(fd, id, subject, json);
    if (!gets)
        return;
    snprintf(subject, sizeof subject, "$JS.API.CONSUMER.DURABLE.CREATE.%s." NATS_CONSUMER, queue);
    snprintf(json, sizeof json, "{\"stream_name\":\"%s\",\"config\":{\"durable_name\":\"" NATS_CONSUMER "\","
             "\"ack_policy\":\"explicit\",\"ack_wait\":120000000000,\"max_ack_pending\":-1,\"max_waiting\":65536}}",
             queue);
    nats_ask(fd, id, subject, json);
}

static void nats_dial(struct conn *c, int id)
{
    char line[1024];
    int pid = (int)getpid(), n;

    hear_line(c->fd, line, sizeof line);
    if (strncmp(line, "INFO ", 5))
        die("set-up: not a NATS server: %s", line);
    n = snprintf(line, sizeof line, "CONNECT {\"verbose\":false,\"pedantic\":false,\"headers\":true,"
                 "\"no_responders\":true,\"lang\":\"c\",\"version\":\"1\",\"protocol\":1}\r\n"
                 "SUB _I.%d.%d.p 1\r\nSUB _I.%d.%d.g 2\r\nSUB _I.%d.%d.a 3\r\nPING\r\n",
                 pid, id, pid, id, pid, id);
    tell(c->fd, line, (size_t)n);
    do {
        hear_line(c->fd, line, sizeof line);
        if (!strncmp(line, "-ERR", 4))
            die("set-up: %s", line);
    } while (strcmp(line, "PONG"));
    if (o.mode == PINGPONG)
        nats_create(c->fd, id, queue_name(c, 0), c->gets);
    else if (id == 0)
        for (int i = 0; i < o.queues; i++)
            nats_create(c->fd, id, queue_name(c, (uint64_t)i), o.mode != PUT);
}

/* Asks for n items. Where the run knows that they are there, the request waits for them: the
 * server may otherwise say that it has none while it looks. */
static void nats_pull(struct conn *c, const char *queue, unsigned n)
{
    char json[80];
    if (o.mode == GET || o.wait)
        snprintf(json, sizeof json, "{\"batch\":%u,\"expires\":%" PRIu64 "}", n,
                 (uint64_t)(o.wait ? o.wait_ms : 60000) * 1000000u);
    else
        snprintf(json, sizeof json, "{\"batch\":%u,\"no_wait\":true}", n);
    say(c, "PUB $JS.API.CONSUMER.MSG.NEXT.%s." NATS_CONSUMER " _I.%d.%d.g %zu\r\n%s\r\n", queue, (int)getpid(),
        c->id, strlen(json), json);
}

/* Gets that are issued in one go share a request, as a client's fetch of several items does. */
static void nats_get(struct conn *c, const char *queue)
{
    if (o.mode == GET && o.queues == 1)
        c->asked++;
    else
        nats_pull(c, queue, 1);
}

static void nats_before_send(struct conn *c)
{
    if (c->asked)
        nats_pull(c, o.queue, c->asked);
    c->asked = 0;
}

/* Sends the acknowledgement of an item; true if it will be answered. */
static bool nats_ack(struct conn *c, const char *subject, size_t len)
{
    if (o.reliable)
        say(c, "PUB %.*s _I.%d.%d.a 0\r\n\r\n", (int)len, subject, (int)getpid(), c->id);
    else
        say(c, "PUB %.*s 0\r\n\r\n", (int)len, subject);
    return o.reliable;
}

/* What the server says unasked, and how many bytes of it are to be dropped; 0: this is something else. */
static size_t nats_chatter(struct conn *c, const char *p, size_t n)
{
    ssize_t len = line_len(p, n);
    if (len < 0)
        return 0;
    if (starts(p, len, "PING"))
        say(c, "PONG\r\n");
    else if (!starts(p, len, "INFO ") && !starts(p, len, "PONG"))
        return 0;
    return (size_t)len + 2;
}

/* Finds what an answer belongs to. */
static enum outcome nats_kind(const char *p, size_t n, enum kind *kind)
{
    ssize_t len = line_len(p, n);
    const char *sid, *at;
    size_t size;

    if (len < 0)
        return n > 4096 ? GARBAGE : PARTIAL;
    if (!starts(p, len, "MSG ") && !starts(p, len, "HMSG "))
        return GARBAGE;
    sid = word(p, len, 2, &size);
    if (!sid || size != 1 || *sid < '1' || !(at = memchr(nats_sids, *sid - '0', 3)))
        return GARBAGE;
    *kind = (enum kind)(at - nats_sids);
    return DONE;
}

/* MSG SUBJECT SID [REPLY] BYTES, or with headers HMSG SUBJECT SID [REPLY] HEADER-BYTES BYTES; then the bytes. */
static enum outcome nats_parse(enum kind kind, const char *p, size_t n, ssize_t len, struct reply *r)
{
    size_t start = r->used, part;
    bool headers = *p == 'H', named;
    int words = 0;

    while (word(p, len, words, &part))
        words++;
    named = words == (headers ? 6 : 5);
    long bytes = number(p, len, words - 1);
    enum outcome out = item(r, p, n, start, bytes, "\r\n");
    if (out != DONE)
        return out;
    if (headers)                              /* a status: 404 no messages, 408 no longer waited for, 503 */
        return kind == R_GET && r->size > 12 && !memcmp(r->data, "NATS/1.0 40", 11) && o.mode != GET ? EMPTY : FAILED;
    switch (kind) {
    case R_PUT:
        return memmem(r->data, r->size, "\"seq\":", 6) && !memmem(r->data, r->size, "\"error\"", 7) ? DONE : FAILED;
    case R_GET:
        if (!named)
            return FAILED;
        r->id = word(p, len, 3, &r->id_len);
        return DONE;
    case R_ACK:
        return DONE;                          /* "+ACK" is empty here */
    }
    return GARBAGE;
}
