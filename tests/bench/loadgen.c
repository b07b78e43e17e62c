/* The client: pre-built Kafka requests down pipelined connections, and a check of every answer.
 *
 * The same binary drives the broker and the ceiling, so that what it costs is in both. It builds nothing: FRAMES is a file of whole
 * requests (length prefix and all), each of FRAME_BYTES; the correlation id at byte 8 is patched. A connection sends
 * its requests round robin, or one and the same for ever with --per-connection (one partition each).
 *
 *   loadgen PORT FRAMES FRAME_BYTES [--connections C] [--window W] [--requests N] [--seconds S] [--warmup N]
 *           [--error-at BYTE] [--per-connection] [--burst]
 *
 * Each request is a send of its own, as it is in librdkafka and in the Java client; with --burst, all that the window allows leave in one
 * send, which no Kafka client does, but which shows what system calls cost.
 *
 * Stops after N answers or S seconds past the warm-up, whichever is first, and drains. Each answer must bear the next
 * correlation id and, with --error-at, an int16 zero at that byte of the response. Prints one JSON object; exits 1 with the reason if
 * an answer is wrong or the peer hangs up.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum {
    RECEIVE_BYTES = 1 << 18,
    HEAD_MAX_BYTES = 256, /* how much of a response's beginning is kept to be checked */
};

struct connection {
    int fd;
    uint8_t *ring; /* window slots of one frame each, sent in order */
    uint64_t queued_bytes, sent_bytes;
    uint64_t sent, answered; /* requests */
    uint64_t *sent_ns; /* by slot */
    uint8_t head[HEAD_MAX_BYTES];
    uint64_t response_seen, response_bytes; /* of the response in progress; response_bytes 0 = length not known yet */
    int want_write;
};

static const uint8_t *frames;
static size_t frame_bytes, frame_count;
static uint64_t window = 1, warmup = 0, requests_max = UINT64_MAX, error_at = 0;
static int per_connection = 0, burst = 0, connection_count = 1, stopping = 0;
static double seconds_max = 1e9;
static uint64_t answered_total, measured, bytes_in, response_min = UINT64_MAX, response_max;
static uint64_t *latencies;
static size_t latency_count, latency_room;
static uint64_t started_ns, last_ns;
static double cpu_at_start;
static uint8_t receive_buffer[RECEIVE_BYTES];

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static double cpu_seconds(void) {
    struct rusage r;
    getrusage(RUSAGE_SELF, &r);
    return (double)(r.ru_utime.tv_sec + r.ru_stime.tv_sec) + 1e-6 * (double)(r.ru_utime.tv_usec + r.ru_stime.tv_usec);
}

static void fail(const char *what, long value) {
    fprintf(stderr, "%s. value=`%ld` errno=`%s`\n", what, value, strerror(errno));
    exit(1);
}

static void enqueue(struct connection *c, int number) {
    if (stopping) return;
    uint64_t free_slots = window - (c->sent - c->answered);
    if (!free_slots) return;
    uint64_t now = now_ns();
    for (; free_slots; free_slots--) {
        uint64_t slot = c->sent % window;
        uint8_t *at = c->ring + slot * frame_bytes;
        if (!per_connection && frame_count > 1) memcpy(at, frames + ((c->sent + (uint64_t)number) % frame_count) * frame_bytes, frame_bytes);
        uint32_t id = htonl((uint32_t)c->sent);
        memcpy(at + 8, &id, 4);
        c->sent_ns[slot] = now;
        c->sent++;
        c->queued_bytes += frame_bytes;
    }
}

/* Sends what the socket takes. Returns 1 when nothing is left to send. */
static int push(struct connection *c) {
    uint64_t ring_bytes = window * frame_bytes;
    while (c->sent_bytes < c->queued_bytes) {
        uint64_t at = c->sent_bytes % ring_bytes, size = c->queued_bytes - c->sent_bytes;
        if (size > ring_bytes - at) size = ring_bytes - at;
        if (!burst && size > frame_bytes - at % frame_bytes) size = frame_bytes - at % frame_bytes;
        ssize_t n = send(c->fd, c->ring + at, size, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && errno == EAGAIN) return 0;
        if (n <= 0) fail("send failed", c->fd);
        c->sent_bytes += (uint64_t)n;
    }
    return 1;
}

static void answered(struct connection *c, uint64_t now) {
    uint32_t id;
    memcpy(&id, c->head + 4, 4);
    if (ntohl(id) != (uint32_t)c->answered) fail("an answer is out of order", (long)ntohl(id));
    if (error_at) {
        uint16_t code;
        if (error_at + 2 > c->response_bytes) fail("an answer is too short", (long)c->response_bytes);
        memcpy(&code, c->head + error_at, 2);
        if (code) fail("an answer is an error", (long)(int16_t)ntohs(code));
    }
    uint64_t slot = c->answered++ % window;
    answered_total++;
    if (answered_total == warmup) {
        started_ns = now;
        cpu_at_start = cpu_seconds();
    } else if (answered_total > warmup && !stopping) {
        measured++;
        bytes_in += c->response_bytes;
        last_ns = now;
        if (c->response_bytes < response_min) response_min = c->response_bytes;
        if (c->response_bytes > response_max) response_max = c->response_bytes;
        if (latency_count < latency_room) latencies[latency_count++] = now - c->sent_ns[slot];
        if (measured >= requests_max || (double)(now - started_ns) * 1e-9 >= seconds_max) stopping = 1;
    }
    c->response_seen = c->response_bytes = 0;
}

/* Takes in what has arrived. Returns 0 if there was nothing. */
static int pull(struct connection *c, int flags) {
    ssize_t n = recv(c->fd, receive_buffer, RECEIVE_BYTES, flags);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return 0;
    if (n <= 0) fail("the peer hung up, answers so far", (long)answered_total);
    uint64_t now = now_ns();
    size_t at = 0, end = (size_t)n;
    while (at < end) {
        if (c->response_seen < HEAD_MAX_BYTES) {
            uint64_t room = HEAD_MAX_BYTES - c->response_seen, left = end - at;
            if (c->response_bytes && room > c->response_bytes - c->response_seen) room = c->response_bytes - c->response_seen;
            if (!c->response_bytes && room > 4 - c->response_seen) room = 4 - c->response_seen;
            if (room > left) room = left;
            memcpy(c->head + c->response_seen, receive_buffer + at, room);
            at += room;
            c->response_seen += room;
            if (!c->response_bytes && c->response_seen == 4) {
                uint32_t length;
                memcpy(&length, c->head, 4);
                c->response_bytes = (uint64_t)ntohl(length) + 4;
                if (c->response_bytes < 8) fail("an answer has a bad length", (long)c->response_bytes);
            }
        } else {
            uint64_t here = c->response_bytes - c->response_seen, left = end - at;
            if (here > left) here = left;
            at += here;
            c->response_seen += here;
        }
        if (c->response_bytes && c->response_seen == c->response_bytes) answered(c, now);
    }
    return 1;
}

static int by_value(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

static double percentile_us(double share) {
    if (!latency_count) return 0;
    size_t at = (size_t)(share * (double)(latency_count - 1) + 0.5);
    return (double)latencies[at] * 1e-3;
}

int main(int argc, char **argv) {
    if (argc < 4) {
        fprintf(stderr, "usage: loadgen PORT FRAMES FRAME_BYTES [options]\n");
        return 2;
    }
    FILE *file = fopen(argv[2], "rb");
    if (!file) fail("cannot open the frames", 0);
    fseek(file, 0, SEEK_END);
    size_t file_bytes = (size_t)ftell(file);
    rewind(file);
    uint8_t *loaded = malloc(file_bytes);
    if (!loaded || fread(loaded, 1, file_bytes, file) != file_bytes) fail("cannot read the frames", (long)file_bytes);
    fclose(file);
    frames = loaded;
    frame_bytes = (size_t)atol(argv[3]);
    if (frame_bytes < 12 || file_bytes % frame_bytes) fail("the file is not a whole number of frames", (long)file_bytes);
    frame_count = file_bytes / frame_bytes;
    for (int i = 4; i < argc; i++) {
        if (!strcmp(argv[i], "--per-connection")) {
            per_connection = 1;
            continue;
        }
        if (!strcmp(argv[i], "--burst")) {
            burst = 1;
            continue;
        }
        if (i + 1 >= argc) fail("an option lacks its value", i);
        const char *value = argv[i + 1];
        if (!strcmp(argv[i], "--connections")) connection_count = atoi(value);
        else if (!strcmp(argv[i], "--window")) window = (uint64_t)atoll(value);
        else if (!strcmp(argv[i], "--requests")) requests_max = (uint64_t)atoll(value);
        else if (!strcmp(argv[i], "--seconds")) seconds_max = atof(value);
        else if (!strcmp(argv[i], "--warmup")) warmup = (uint64_t)atoll(value);
        else if (!strcmp(argv[i], "--error-at")) error_at = (uint64_t)atoll(value);
        else fail("unknown option", i);
        i++;
    }
    if (error_at + 2 > HEAD_MAX_BYTES) fail("--error-at is too far in", (long)error_at);
    if (window < 1 || connection_count < 1) fail("nothing to do", connection_count);
    latency_room = 1 << 20;
    latencies = malloc(latency_room * sizeof *latencies);
    memset(latencies, 0, latency_room * sizeof *latencies); /* page faults belong before the measurement */
    struct connection *all = calloc((size_t)connection_count, sizeof *all);
    int poller = epoll_create1(0), one = 1;
    for (int i = 0; i < connection_count; i++) {
        struct connection *c = &all[i];
        c->fd = socket(AF_INET, SOCK_STREAM, 0);
        struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(argv[1]))};
        address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        if (connect(c->fd, (struct sockaddr *)&address, sizeof address)) fail("cannot connect to port", atoi(argv[1]));
        setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        c->ring = malloc(window * frame_bytes);
        c->sent_ns = calloc(window, sizeof *c->sent_ns);
        if (!c->ring || !c->sent_ns) fail("out of memory", (long)(window * frame_bytes));
        for (uint64_t slot = 0; slot < window; slot++) memcpy(c->ring + slot * frame_bytes, frames + ((size_t)i % frame_count) * frame_bytes, frame_bytes);
        struct epoll_event event = {.events = EPOLLIN, .data.u32 = (uint32_t)i};
        if (epoll_ctl(poller, EPOLL_CTL_ADD, c->fd, &event)) fail("epoll_ctl", i);
    }
    started_ns = now_ns();
    cpu_at_start = cpu_seconds();
    if (connection_count == 1) {
        struct connection *c = &all[0];
        while (!stopping || c->answered < c->sent) {
            enqueue(c, 0);
            if (push(c)) {
                pull(c, 0);
                continue;
            }
            struct pollfd ready = {.fd = c->fd, .events = POLLIN | POLLOUT};
            if (poll(&ready, 1, -1) < 0 && errno != EINTR) fail("poll", 0);
            if (ready.revents & (POLLIN | POLLHUP | POLLERR)) pull(c, MSG_DONTWAIT);
        }
    } else {
        uint64_t outstanding = 1;
        struct epoll_event events[256];
        for (int i = 0; i < connection_count; i++) enqueue(&all[i], i);
        for (int i = 0; i < connection_count; i++) all[i].want_write = 1;
        for (int i = 0; i < connection_count; i++) {
            struct epoll_event event = {.events = EPOLLIN | EPOLLOUT, .data.u32 = (uint32_t)i};
            epoll_ctl(poller, EPOLL_CTL_MOD, all[i].fd, &event);
        }
        while (!stopping || outstanding) {
            int ready = epoll_wait(poller, events, 256, -1);
            if (ready < 0 && errno != EINTR) fail("epoll_wait", 0);
            for (int e = 0; e < ready; e++) {
                struct connection *c = &all[events[e].data.u32];
                if (events[e].events & (EPOLLIN | EPOLLHUP | EPOLLERR)) pull(c, MSG_DONTWAIT);
                enqueue(c, (int)events[e].data.u32);
                int want = !push(c);
                if (want != c->want_write) {
                    c->want_write = want;
                    struct epoll_event event = {.events = EPOLLIN | (want ? EPOLLOUT : 0), .data.u32 = events[e].data.u32};
                    epoll_ctl(poller, EPOLL_CTL_MOD, c->fd, &event);
                }
            }
            outstanding = 0;
            if (stopping)
                for (int i = 0; i < connection_count; i++) outstanding += all[i].sent - all[i].answered;
        }
    }
    double seconds = (double)(last_ns - started_ns) * 1e-9, cpu = cpu_seconds() - cpu_at_start;
    qsort(latencies, latency_count, sizeof *latencies, by_value);
    printf("{\"requests\": %lu, \"answered\": %lu, \"seconds\": %.6f, \"requests_per_s\": %.1f, \"bytes_out\": %lu, \"bytes_in\": %lu, "
           "\"p50_us\": %.1f, \"p99_us\": %.1f, \"p999_us\": %.1f, \"response_min\": %lu, \"response_max\": %lu, \"client_cpu_s\": %.4f}\n",
           measured, answered_total, seconds, seconds > 0 ? (double)measured / seconds : 0.0, measured * frame_bytes, bytes_in,
           percentile_us(.5), percentile_us(.99), percentile_us(.999), measured ? response_min : 0, response_max, cpu);
    return 0;
}
