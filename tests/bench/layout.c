/* What a loop in C makes of columns: the records of one RecordBatch v2, those of the rows [first, end).
 *
 * Ends are Arrow's int32 offsets; times are milliseconds. Returns the bytes written to `out`.
 */
#include <stdint.h>
#include <string.h>

static uint64_t zigzag(int64_t value) { return ((uint64_t)value << 1) ^ (uint64_t)(value >> 63); }

static int width(int64_t value) {
    int bytes = 1;
    for (uint64_t left = zigzag(value); left >= 128; left >>= 7) bytes++;
    return bytes;
}

static uint8_t *varint(uint8_t *at, int64_t value) {
    uint64_t left = zigzag(value);
    for (; left >= 128; left >>= 7) *at++ = (uint8_t)(left | 128);
    *at++ = (uint8_t)left;
    return at;
}

static uint8_t *bytes(uint8_t *at, const uint8_t *from, int32_t size) {
    at = varint(at, size);
    memcpy(at, from, (size_t)size);
    return at + size;
}

int64_t encode_rows(const int64_t *times, const int32_t *key_ends, const uint8_t *keys, const int32_t *value_ends,
                    const uint8_t *values, int64_t first, int64_t end, uint8_t *out) {
    uint8_t *at = out;
    for (int64_t row = first; row < end; row++) {
        int32_t key = key_ends[row + 1] - key_ends[row], value = value_ends[row + 1] - value_ends[row];
        int64_t since = times[row] - times[first];
        at = varint(at, 2 + width(since) + width(row - first) + width(key) + key + width(value) + value);
        *at++ = 0; /* attributes */
        at = varint(at, since);
        at = varint(at, row - first);
        at = bytes(at, keys + key_ends[row], key);
        at = bytes(at, values + value_ends[row], value);
        *at++ = 0; /* headers */
    }
    return at - out;
}
