/*
 * AMQP 0-9-1, as RabbitMQ speaks it, for queue_load.c, which includes this file: frames in binary.
 *
 * A queue is durable, a quorum queue or with --classic a classic one; items are persistent, and puts are
 * confirmed (Confirm.Select). Items are not asked for one by one: each connection has a consumer whose
 * prefetch count is --pipeline, so that the acknowledgement of an item is the request for the next.
 *
 * put       Basic.Publish, a header, a body; confirmed by Basic.Ack, of one or of all up to it
 * get       Basic.Deliver, a header, a body; acknowledged at once by Basic.Ack, which is not answered
 */

#define AMQP_BODY_MAX 131064u                 /* one frame of the largest size that both sides take */

enum { FRAME_METHOD = 1, FRAME_HEADER = 2, FRAME_BODY = 3, FRAME_HEARTBEAT = 8, FRAME_END = 0xCE };
enum { FRAME_EDGES = 8 };                     /* type, channel, size; the end mark */

#define METHOD(class, number) ((uint32_t)(class) << 16 | (uint32_t)(number))
#define CONFIRMED METHOD(60, 80)              /* Basic.Ack, in either direction */
#define REFUSED METHOD(60, 120)               /* Basic.Nack */
#define DELIVERED METHOD(60, 60)

static uint64_t read_be(const char *p, int bytes)
{
    uint64_t v = 0;
    for (int i = 0; i < bytes; i++)
        v = v << 8 | (unsigned char)p[i];
    return v;
}

static char *write_be(char *p, uint64_t v, int bytes)
{
    for (int i = bytes - 1; i >= 0; i--, v >>= 8)
        p[i] = (char)(v & 0xff);
    return p + bytes;
}

static char *write_short(char *p, const char *text)
{
    size_t n = strlen(text);
    *p++ = (char)n;
    memcpy(p, text, n);
    return p + n;
}

static char *write_long(char *p, const char *text, size_t n)
{
    p = write_be(p, n, 4);
    memcpy(p, text, n);
    return p + n;
}

/* A frame is begun, filled in, and ended where it ends. */
static char *frame_begin(char *p, int type, int channel)
{
    *p++ = (char)type;
    p = write_be(p, (uint64_t)channel, 2);
    return p + 4;
}

static char *method_begin(char *p, int channel, uint32_t method)
{
    return write_be(frame_begin(p, FRAME_METHOD, channel), method, 4);
}

static char *frame_end(char *begin, char *p)
{
    write_be(begin + 3, (uint64_t)(p - begin - 7), 4);
    *p++ = (char)FRAME_END;
    return p;
}

/* Bytes of the frame at p, or 0 while it is not complete. */
static size_t frame_size(const char *p, size_t n)
{
    size_t size = n < 7 ? 0 : (size_t)read_be(p + 3, 4) + FRAME_EDGES;
    return size <= n ? size : 0;
}

/* Before the clock starts: send a method, if any, and read until the wanted one comes. */
static void amqp_ask(int fd, const char *begin, const char *end, uint32_t wanted)
{
    static char buf[1 << 16];
    char head[7];
    uint32_t method = 0;

    if (end > begin)
        tell(fd, begin, (size_t)(end - begin));
    while (method != wanted) {
        hear(fd, head, sizeof head);
        size_t size = (size_t)read_be(head + 3, 4);
        if (size + 1 > sizeof buf)
            die("set-up: a frame of %zu bytes", size);
        hear(fd, buf, size + 1);
        method = *head == FRAME_METHOD ? (uint32_t)read_be(buf, 4) : 0;
        if (method == METHOD(10, 50) || method == METHOD(20, 40))     /* Connection.Close, Channel.Close */
            die("set-up: refused: %.*s", (int)(unsigned char)buf[6], buf + 7);
    }
}

static void amqp_open(int fd)
{
    char b[256], *p;

    tell(fd, "AMQP\0\0\11\1", 8);
    amqp_ask(fd, b, b, METHOD(10, 10));
    p = method_begin(b, 0, METHOD(10, 11));   /* Start-Ok: no properties, plain, guest and guest */
    p = write_be(p, 0, 4);
    p = write_short(p, "PLAIN");
    p = write_long(p, "\0guest\0guest", 12);
    p = write_short(p, "en_US");
    amqp_ask(fd, b, frame_end(b, p), METHOD(10, 30));
    p = method_begin(b, 0, METHOD(10, 31));   /* Tune-Ok: channels, frame, no heartbeats */
    p = write_be(p, 1, 2);
    p = write_be(p, AMQP_BODY_MAX + FRAME_EDGES, 4);
    p = write_be(p, 0, 2);
    tell(fd, b, (size_t)(frame_end(b, p) - b));
    p = method_begin(b, 0, METHOD(10, 40));   /* Open */
    p = write_short(p, "/");
    p = write_be(p, 0, 2);
    amqp_ask(fd, b, frame_end(b, p), METHOD(10, 41));
    p = write_short(method_begin(b, 1, METHOD(20, 10)), "");
    amqp_ask(fd, b, frame_end(b, p), METHOD(20, 11));
}

static void amqp_declare(int fd, const char *queue)
{
    char b[512], *p, *table;

    p = write_be(method_begin(b, 1, METHOD(50, 10)), 0, 2);
    p = write_short(p, queue);
    *p++ = 2;                                 /* durable */
    table = p;
    p = write_short(p + 4, "x-queue-type");
    *p++ = 'S';
    p = o.classic ? write_long(p, "classic", 7) : write_long(p, "quorum", 6);
    write_be(table, (uint64_t)(p - table - 4), 4);
    amqp_ask(fd, b, frame_end(b, p), METHOD(50, 11));
}

static void amqp_dial(struct conn *c, int id)
{
    char b[64], *p;

    amqp_open(c->fd);
    if (id == 0)
        for (int i = 0; i < o.queues; i++)
            amqp_declare(c->fd, queue_name(c, (uint64_t)i));
    if (c->puts) {
        p = method_begin(b, 1, METHOD(85, 10));
        *p++ = 0;
        amqp_ask(c->fd, b, frame_end(b, p), METHOD(85, 11));
    }
    if (c->gets) {
        p = write_be(method_begin(b, 1, METHOD(60, 10)), 0, 4);
        p = write_be(p, (uint64_t)o.pipeline, 2);
        *p++ = 0;
        amqp_ask(c->fd, b, frame_end(b, p), METHOD(60, 11));
    }
}

/* Method, header, and the body's frame up to where the item begins; its end mark is amqp_put_end's. */
static void amqp_put(struct conn *c, const char *queue)
{
    char *begin = out_room(c, 512), *p, *q;

    p = write_be(method_begin(begin, 1, METHOD(60, 40)), 0, 2);
    p = write_short(write_short(p, ""), queue);
    *p++ = 0;
    q = frame_end(begin, p);
    p = write_be(frame_begin(q, FRAME_HEADER, 1), METHOD(60, 0), 4);
    p = write_be(p, o.size, 8);
    p = write_be(p, 0x1000, 2);               /* delivery mode, */
    *p++ = 2;                                 /* persistent */
    q = frame_end(q, p);
    p = frame_begin(q, FRAME_BODY, 1);
    write_be(q + 3, o.size, 4);
    c->out_len += (size_t)(p - begin);
}

static void amqp_get(struct conn *c)
{
    if (c->consumes)
        return;                               /* the acknowledgement of the last was the request */
    char *begin = out_room(c, 256), *p = write_be(method_begin(begin, 1, METHOD(60, 20)), 0, 2);
    p = write_short(write_short(p, o.queue), "");
    *p++ = 8;                                 /* not answered */
    p = write_be(p, 0, 4);
    c->out_len += (size_t)(frame_end(begin, p) - begin);
    c->consumes = true;
}

static void amqp_ack(struct conn *c, uint64_t tag)
{
    char *begin = out_room(c, 64), *p = write_be(method_begin(begin, 1, CONFIRMED), tag, 8);
    *p++ = 0;
    c->out_len += (size_t)(frame_end(begin, p) - begin);
}

/* The put that a confirmation is for: of the tag, or of all up to it the oldest; NULL if there is none. */
static const struct pending *amqp_confirmed(const struct conn *c, uint64_t tag, bool and_before, unsigned *at)
{
    for (*at = 0; *at < c->due; ++*at) {
        const struct pending *p = &c->ring[(c->head + *at) & c->mask];
        if (p->kind == R_PUT && (p->tag == tag || (and_before && p->tag < tag)))
            return p;
    }
    return NULL;
}

/* Bytes to drop that nothing waits for: heartbeats, a confirmation of what has been confirmed. */
static size_t amqp_chatter(struct conn *c, const char *p, size_t n)
{
    size_t size = frame_size(p, n);
    unsigned at;

    if (!size || *p == FRAME_HEARTBEAT)
        return size;
    if (*p == FRAME_METHOD && read_be(p + 7, 4) == CONFIRMED
        && !amqp_confirmed(c, read_be(p + 11, 8), p[19] & 1, &at) && (p[19] & 1))
        return size;
    return 0;
}

/* Finds what an answer belongs to, and how far back in the line that stands. */
static enum outcome amqp_kind(const struct conn *c, const char *p, size_t n, enum kind *kind, unsigned *at)
{
    if (!frame_size(p, n))
        return PARTIAL;
    uint32_t method = *p == FRAME_METHOD ? (uint32_t)read_be(p + 7, 4) : 0;
    if (method == CONFIRMED || method == REFUSED) {
        *kind = R_PUT;
        return amqp_confirmed(c, read_be(p + 11, 8), p[19] & 1, at) ? DONE : GARBAGE;
    }
    *kind = R_GET;
    for (*at = 0; *at < c->due && c->ring[(c->head + *at) & c->mask].kind != R_GET;)
        ++*at;
    return method == DELIVERED ? DONE : GARBAGE;
}

static enum outcome amqp_parse(const struct conn *c, const char *p, size_t n, struct reply *r)
{
    size_t method = frame_size(p, n), header, body;
    unsigned at;

    if (!method)
        return PARTIAL;
    if (read_be(p + 7, 4) != DELIVERED) {
        uint64_t tag = read_be(p + 11, 8);
        bool and_before = p[19] & 1;
        const struct pending *put = amqp_confirmed(c, tag, and_before, &at);
        r->used = put && put->tag < tag ? 0 : method;         /* read again for the next put that it confirms */
        return read_be(p + 7, 4) == CONFIRMED ? DONE : FAILED;
    }
    header = frame_size(p + method, n - method);
    if (!header)
        return PARTIAL;
    if (p[method] != FRAME_HEADER)
        return GARBAGE;
    body = frame_size(p + method + header, n - method - header);
    if (!body)
        return PARTIAL;
    const char *tagged = p + 11 + 1 + (unsigned char)p[11];   /* behind the consumer's name */
    if (p[method + header] != FRAME_BODY || read_be(p + method + 11, 8) != body - FRAME_EDGES)
        return GARBAGE;
    r->tag = read_be(tagged, 8);
    r->data = p + method + header + 7;
    r->size = body - FRAME_EDGES;
    r->used = method + header + body;
    return DONE;
}
