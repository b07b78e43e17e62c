/* The ceiling: a peer that carries a Kafka connection's traffic and does nothing else.
 *
 * It reads length-prefixed requests to their last byte and answers each, in order, with a canned response that bears the request's
 * correlation id: one file for Produce (api key 0), one for Fetch (api key 1). No parsing, no CRC, no storage, no offsets. What it
 * reaches over the same loopback, with the same client, is the most that any broker could.
 *
 * One thread per connection and blocking calls: for one pipelined connection that is the least number of system calls there is.
 * Responses to all requests that one recv brought leave in one send, unless they are large. After that send the thread may rest, on the
 * processor, before it looks at the socket again: a server that has work to do gathers requests meanwhile, and neither side has to wake
 * the other for each. Without a rest this peer is not the fastest there is for small requests.
 *
 *   ceiling PORT PRODUCE_RESPONSE FETCH_RESPONSE FETCH_COPIES REST_US
 *
 * FETCH_RESPONSE is laid out FETCH_COPIES times in memory and the answers walk over them, so that the bytes come from main memory
 * as a log's would, not from the first-level cache. A file named "-" means that the API is not served (the connection is closed).
 * Prints "ready" once it listens; runs until it is killed.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum {
    RECEIVE_BYTES = 1 << 18, /* small enough to stay in the second-level cache */
    COALESCE_BYTES = 1 << 16, /* responses up to this size are gathered into one send */
    HEAD_BYTES = 12, /* length, api key, api version, correlation id */
};

struct canned {
    uint8_t *bytes;
    size_t size, copies;
};

static struct canned produce, fetch;
static double rest_s;

static double now_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void die(const char *what) {
    perror(what);
    exit(1);
}

static struct canned load(const char *path, size_t copies) {
    struct canned out = {0};
    if (strcmp(path, "-") == 0) return out;
    FILE *file = fopen(path, "rb");
    if (!file) die(path);
    fseek(file, 0, SEEK_END);
    out.size = (size_t)ftell(file);
    out.copies = copies;
    rewind(file);
    out.bytes = malloc(out.size * copies);
    if (!out.bytes || fread(out.bytes, 1, out.size, file) != out.size) die(path);
    for (size_t i = 1; i < copies; i++) memcpy(out.bytes + i * out.size, out.bytes, out.size);
    fclose(file);
    return out;
}

static int send_all(int fd, const uint8_t *bytes, size_t size) {
    while (size) {
        ssize_t n = send(fd, bytes, size, MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return -1;
        bytes += n;
        size -= (size_t)n;
    }
    return 0;
}

static void *serve(void *argument) {
    int fd = (int)(intptr_t)argument;
    uint8_t *buffer = malloc(RECEIVE_BYTES);
    uint8_t *out = malloc(COALESCE_BYTES);
    size_t held = 0, out_size = 0, turn = 0;
    size_t skip = 0; /* bytes of the current request that are still to come */
    struct canned *answer = NULL;
    uint8_t id[4];
    /* Own copies of large responses, because their correlation ids are patched in place. */
    struct canned own_fetch = fetch;
    if (fetch.bytes) {
        own_fetch.bytes = malloc(fetch.size * fetch.copies);
        memcpy(own_fetch.bytes, fetch.bytes, fetch.size * fetch.copies);
    }
    for (;;) {
        ssize_t n = recv(fd, buffer + held, RECEIVE_BYTES - held, 0);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) break;
        size_t at = 0, end = held + (size_t)n;
        for (;;) {
            if (!answer) { /* at the start of a request */
                if (end - at < HEAD_BYTES) break;
                uint32_t length;
                uint16_t key;
                memcpy(&length, buffer + at, 4);
                memcpy(&key, buffer + at + 4, 2);
                memcpy(id, buffer + at + 8, 4);
                skip = (size_t)ntohl(length) + 4;
                answer = ntohs(key) == 0 ? &produce : ntohs(key) == 1 ? &own_fetch : NULL;
                if (!answer || !answer->bytes || skip < HEAD_BYTES) goto over;
            }
            size_t here = end - at < skip ? end - at : skip;
            at += here;
            skip -= here;
            if (skip) break;
            if (answer->size > COALESCE_BYTES) {
                if (out_size && send_all(fd, out, out_size)) goto over;
                out_size = 0;
                uint8_t *frame = answer->bytes + (turn++ % answer->copies) * answer->size;
                memcpy(frame + 4, id, 4);
                if (send_all(fd, frame, answer->size)) goto over;
            } else {
                if (out_size + answer->size > COALESCE_BYTES) {
                    if (send_all(fd, out, out_size)) goto over;
                    out_size = 0;
                }
                memcpy(out + out_size, answer->bytes + (turn++ % answer->copies) * answer->size, answer->size);
                memcpy(out + out_size + 4, id, 4);
                out_size += answer->size;
            }
            answer = NULL;
        }
        held = end - at;
        if (held) memmove(buffer, buffer + at, held);
        if (!out_size) continue;
        if (send_all(fd, out, out_size)) break;
        out_size = 0;
        if (rest_s > 0)
            for (double end_s = now_s() + rest_s; now_s() < end_s;) continue;
    }
over:
    close(fd);
    free(buffer);
    free(out);
    if (own_fetch.bytes) free(own_fetch.bytes);
    return NULL;
}

int main(int argc, char **argv) {
    if (argc != 6) {
        fprintf(stderr, "usage: ceiling PORT PRODUCE_RESPONSE FETCH_RESPONSE FETCH_COPIES REST_US\n");
        return 2;
    }
    produce = load(argv[2], 1);
    fetch = load(argv[3], (size_t)atol(argv[4]));
    rest_s = atof(argv[5]) * 1e-6;
    int listener = socket(AF_INET, SOCK_STREAM, 0), one = 1;
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(argv[1]))};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (bind(listener, (struct sockaddr *)&address, sizeof address) || listen(listener, 1024)) die("listen");
    puts("ready");
    fflush(stdout);
    for (;;) {
        int fd = accept(listener, NULL, NULL);
        if (fd < 0) continue;
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        pthread_t thread;
        if (pthread_create(&thread, NULL, serve, (void *)(intptr_t)fd)) die("pthread_create");
        pthread_detach(thread);
    }
}
