/*
 * The log: one global order, in a file that every recorded process has mapped.
 *
 * Method: a record is begun under a lock, the call is made, the record is completed, the header's
 * `committed` moves, the lock is released. What a process did stands in the page cache as soon as
 * it is stored, so that neither os._exit nor SIGKILL loses a finished call. A holder that was
 * killed leaves a record in state BEGUN; whoever waits for the lock notices the death, marks the
 * record ABANDONED (it may have happened) and goes on.
 *
 * Limits: the thread id of a dead holder that is in use again delays that until it, too, is gone.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <signal.h>
#include <string.h>
#include <time.h>

#include "recorder.h"

struct header *log_header;
struct state *shared;
stack_hash_function stack_hash;
stack_text_function stack_text;

static uint32_t crc_table[8][256]; /* eight bytes at a time */
static uint32_t last_process;

#define ADLER 65521u

static uint32_t crc_more(uint32_t crc, const void *bytes, size_t size)
{
    const unsigned char *data = bytes;
    uint32_t c = ~crc;
    for (; size >= 8; size -= 8, data += 8) {
        uint32_t low, high;
        memcpy(&low, data, 4);
        memcpy(&high, data + 4, 4);
        low ^= c;
        c = crc_table[7][low & 255] ^ crc_table[6][low >> 8 & 255] ^
            crc_table[5][low >> 16 & 255] ^ crc_table[4][low >> 24] ^
            crc_table[3][high & 255] ^ crc_table[2][high >> 8 & 255] ^
            crc_table[1][high >> 16 & 255] ^ crc_table[0][high >> 24];
    }
    while (size--)
        c = crc_table[0][(c ^ *data++) & 255] ^ (c >> 8);
    return ~c;
}

uint32_t log_crc(const void *bytes, size_t size)
{
    return crc_more(0, bytes, size);
}

/* Of the fixed part, in the state that it will have, and of the names. */
static uint32_t check_of(const struct record *record, uint32_t fixed, enum record_state state)
{
    struct record still = *record;
    still.state = (uint8_t)state;
    still.check = 0;
    uint32_t crc = crc_more(0, &still, sizeof still);
    return crc_more(crc, record + 1, fixed - sizeof still);
}

/* Sums that a compiler turns into vector instructions; 2,048 bytes cannot overflow them. */
#define ADLER_SUM(data, n, sum, weighted)                                                         \
    do {                                                                                          \
        for (uint32_t i_ = 0; i_ < (n); i_++) {                                                   \
            (sum) += (data)[i_];                                                                  \
            (weighted) += ((n) - i_) * (data)[i_];                                                \
        }                                                                                         \
    } while (0)

struct sums {
    uint32_t sum, weighted;
};

static struct sums sums_plain(const unsigned char *data, uint32_t n)
{
    struct sums sums = {0, 0};
    ADLER_SUM(data, n, sums.sum, sums.weighted);
    return sums;
}

static struct sums (*block_sums)(const unsigned char *data, uint32_t n) = sums_plain;

#if defined(__x86_64__)
__attribute__((target("avx2"))) static struct sums sums_avx2(const unsigned char *data, uint32_t n)
{
    struct sums sums = {0, 0};
    ADLER_SUM(data, n, sums.sum, sums.weighted);
    return sums;
}
#endif

void log_prepare_checks(void)
{
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t c = i;
        for (int k = 0; k < 8; k++)
            c = c & 1 ? 0xedb88320u ^ (c >> 1) : c >> 1;
        crc_table[0][i] = c;
    }
    for (uint32_t i = 0; i < 256; i++)
        for (int k = 1; k < 8; k++)
            crc_table[k][i] = crc_table[k - 1][i] >> 8 ^ crc_table[0][crc_table[k - 1][i] & 255];
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx2"))
        block_sums = sums_avx2;
#endif
}

static uint32_t adler32(const unsigned char *data, size_t size)
{
    uint32_t a = 1, b = 0;
    while (size) {
        uint32_t n = size < 2048 ? (uint32_t)size : 2048;
        struct sums sums = block_sums(data, n);
        b = (uint32_t)((b + (uint64_t)a * n + sums.weighted) % ADLER);
        a = (a + sums.sum) % ADLER;
        data += n, size -= n;
    }
    return b << 16 | a;
}

/* Where the next record is built; and, for one too large for the window, its mapping. */
static char *next_place(void)
{
    return shared->window + (log_header->committed - log_header->spooled);
}

static char *large;
static uint64_t large_size;
static uint32_t large_owner; /* a fork made meanwhile inherits these, and must not believe them */

static int is_large(void)
{
    return large && large_owner == shared->lock;
}

int log_is_whole(void)
{
    return log_header && !log_header->lost;
}

/* The lock. */

static void finish(struct record *record, long result, enum record_state state);

/*
 * What a holder that died left half done. It sets, in this order: the end and the number that it
 * intends, `committed` (for a large record `spooled` before), `records`.
 */
static void repair(void)
{
    if (log_header->spooled > log_header->committed)
        log_header->committed = log_header->spooled;
    if (log_header->committed == shared->intended_end)
        log_header->records = shared->sequence;
    struct record *record = (struct record *)next_place();
    if (record->sequence != log_header->records)
        return; /* of an earlier window */
    if (record->state == BEGUN)
        finish(record, -EINTR, ABANDONED);
    else if (record->state == DONE)
        finish(record, record->result, DONE);
}

/* A dead holder may still be a zombie, since its parent may be the one that waits here. */
static int is_gone(uint32_t thread)
{
    char path[32], stat[512];
    number_path(path, "/proc/", (int)thread);
    memcpy(path + strlen(path), "/stat", 6);
    long fd = stub4(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC, 0);
    if (IS_ERROR(fd))
        return raw2(SYS_kill, thread, 0) == -ESRCH;
    long got = raw3(SYS_read, fd, stat, sizeof stat - 1);
    stub1(SYS_close, fd);
    if (got <= 0)
        return got == -ESRCH;
    stat[got] = 0;
    const char *state = strrchr(stat, ')'); /* the name before it may hold anything */
    return state && state[1] == ' ' && strchr("ZXx", state[2]) != NULL;
}

void log_lock(void)
{
    uint32_t me = (uint32_t)raw0(SYS_gettid);
    for (int spin = 0;; spin++) {
        uint32_t holder = 0;
        if (__atomic_compare_exchange_n(&shared->lock, &holder, me, 0, __ATOMIC_ACQUIRE,
                                        __ATOMIC_RELAXED))
            return;
        if (spin < 64)
            continue;
        struct timespec wait = {0, 20 * 1000 * 1000};
        __atomic_add_fetch(&shared->waiters, 1, __ATOMIC_SEQ_CST);
        long woken = raw4(SYS_futex, &shared->lock, FUTEX_WAIT, holder, &wait);
        __atomic_sub_fetch(&shared->waiters, 1, __ATOMIC_SEQ_CST);
        if (woken == -ETIMEDOUT && is_gone(holder) &&
            __atomic_compare_exchange_n(&shared->lock, &holder, me, 0, __ATOMIC_ACQUIRE,
                                        __ATOMIC_RELAXED)) {
            if (log_is_whole())
                repair();
            return;
        }
    }
}

void log_unlock(void)
{
    __atomic_store_n(&shared->lock, 0, __ATOMIC_SEQ_CST);
    if (__atomic_load_n(&shared->waiters, __ATOMIC_SEQ_CST))
        raw3(SYS_futex, &shared->lock, FUTEX_WAKE, 1);
}

/* Room. */

static int lose(long error)
{
    log_header->lost = (uint32_t)-error;
    return 0;
}

/* Writes the window's records to the file; what is being built stays where it is. */
int log_spool(void)
{
    uint64_t from = log_header->spooled, size = log_header->committed - from, done = 0;
    if (log_header->committed + WINDOW_SIZE > shared->log_size_max)
        return lose(-EFBIG);
    long fd = stub4(SYS_openat, AT_FDCWD, shared->log_path, O_WRONLY | O_CLOEXEC, 0);
    if (IS_ERROR(fd))
        return lose(fd);
    long written = 1;
    while (done < size && written > 0) {
        written = stub4(SYS_pwrite64, fd, shared->window + done, size - done, from + done);
        done += written > 0 ? (uint64_t)written : 0;
    }
    stub1(SYS_close, fd);
    if (done < size)
        return lose(IS_ERROR(written) ? written : -ENOSPC);
    log_header->spooled = from + size;
    return 1;
}

/* A record with many bytes is built in the file itself, by a mapping for it alone. */
static struct record *make_large(struct record *record, size_t size)
{
    uint64_t at = log_header->committed, start = at & ~65535ull; /* a page, anywhere */
    uint64_t end = at + record->size + size + 16;
    if (end > shared->log_size_max || !log_spool()) {
        lose(-EFBIG);
        return NULL;
    }
    memmove(shared->window, record, record->size);
    record = (struct record *)shared->window;
    long fd = stub4(SYS_openat, AT_FDCWD, shared->log_path, O_RDWR | O_CLOEXEC, 0);
    long result = IS_ERROR(fd) ? fd : stub4(SYS_fallocate, fd, 0, start, end - start);
    if (!IS_ERROR(result))
        result = stub6(SYS_mmap, 0, (long)(end - start), 3, 1, fd, (long)start);
    if (!IS_ERROR(fd))
        stub1(SYS_close, fd);
    if (IS_ERROR(result)) {
        lose(result);
        return NULL;
    }
    large = (char *)result;
    large_owner = shared->lock;
    large_size = end - start;
    memcpy(large + (at - start), record, record->size);
    return (struct record *)(large + (at - start));
}

static void drop_large(void)
{
    if (is_large())
        raw2(SYS_munmap, large, large_size);
    large = NULL;
}

/* Records. */

static struct record *open_record(enum kind kind, const struct call *call)
{
    if (!log_is_whole())
        return NULL;
    if (log_header->committed - log_header->spooled + ROOM > WINDOW_SIZE && !log_spool())
        return NULL;
    struct record *record = (struct record *)next_place();
    memset(record, 0, RECORD_SIZE);
    record->size = RECORD_SIZE;
    record->kind = (uint8_t)kind;
    record->call = call ? (uint16_t)call->nr : 0xffff;
    record->sequence = log_header->records;
    record->process = last_process;
    record->thread = shared->lock;
    __atomic_store_n(&record->state, BEGUN, __ATOMIC_RELEASE);
    return record;
}

static int is_new_process(uint32_t process)
{
    uint32_t at = process * 2654435761u % PROCESS_SLOTS;
    for (uint32_t i = 0; i < 16; i++) {
        uint32_t *slot = &shared->process[(at + i) % PROCESS_SLOTS];
        if (*slot == process)
            return 0;
        if (*slot == 0 || *slot == UINT32_MAX) { /* free, or of a process that exited */
            *slot = process;
            return 1;
        }
    }
    return 1;
}

static void log_process(uint32_t process)
{
    last_process = process;
    struct record *record = is_new_process(process) ? open_record(K_PROCESS, NULL) : NULL;
    if (!record)
        return;
    record->offset = (uint64_t)raw0(SYS_getppid);
    char name[16] = {0};
    raw2(SYS_prctl, 16 /* PR_GET_NAME */, name);
    log_name(record, name, strnlen(name, sizeof name));
    log_commit(record, 0);
}

static uint32_t find_stack(void)
{
    uint64_t hash = stack_hash();
    if (!hash)
        return 0;
    for (uint32_t i = 0; i < STACK_SLOTS; i++) {
        uint32_t at = (uint32_t)(hash + i) % STACK_SLOTS;
        if (shared->stack[at].hash == hash)
            return (uint32_t)shared->stack[at].number;
        if (shared->stack[at].hash)
            continue;
        struct record *record = open_record(K_STACK, NULL);
        char *text = record && stack_text ? log_payload(&record, 16384) : NULL;
        if (!text || shared->stacks >= STACK_SLOTS - STACK_SLOTS / 4) {
            if (record)
                log_cancel(record);
            return 0;
        }
        uint32_t size = stack_text(text, 16384);
        record->payload_size = size;
        record->size = (uint32_t)(text + size - (char *)record);
        record->stack = ++shared->stacks;
        shared->stack[at].number = record->stack;
        shared->stack[at].hash = hash;
        log_commit(record, 0);
        return (uint32_t)shared->stack[at].number;
    }
    return 0;
}

struct record *log_begin(enum kind kind, const struct call *call)
{
    if (!log_is_whole())
        return NULL;
    uint32_t process = (uint32_t)raw0(SYS_getpid);
    if (process != last_process)
        log_process(process);
    uint32_t stack = stack_hash && call ? find_stack() : 0;
    struct record *record = open_record(kind, call);
    if (record)
        record->stack = stack;
    return record;
}

static void append(struct record *record, const char *name, size_t size)
{
    memcpy((char *)record + record->size, name, size);
    record->size += (uint32_t)size;
}

void log_name(struct record *record, const char *name, size_t size)
{
    append(record, name, size);
    record->name_size = (uint16_t)size;
}

void log_second(struct record *record, const char *name, size_t size)
{
    append(record, name, size);
    record->second_size = (uint16_t)size;
}

/* Returns room for the payload, which comes after the names; NULL where there is none. */
char *log_payload(struct record **record, size_t size)
{
    struct record *r = *record;
    if (size > 0x7fffffff - 65536) {
        lose(-EFBIG);
        return NULL;
    }
    if ((char *)r + r->size + size + RECORD_SIZE > shared->window + WINDOW_SIZE)
        *record = r = make_large(r, size);
    if (!r)
        return NULL;
    char *at = (char *)r + r->size;
    r->payload_size = (uint32_t)size;
    r->size += (uint32_t)size;
    return at;
}

static void finish(struct record *record, long result, enum record_state state)
{
    if (!record || !log_is_whole())
        return;
    uint32_t fixed = RECORD_SIZE + record->name_size + record->second_size;
    record->result = result;
    record->payload_check = adler32((unsigned char *)record + fixed, record->payload_size);
    while (record->size % 8)
        ((char *)record)[record->size++] = 0;
    record->check = check_of(record, fixed, state);
    uint64_t end = log_header->committed + record->size;
    if (!is_large()) /* what follows must not look like a record that was begun */
        memset((char *)record + record->size, 0, 24);
    record->state = (uint8_t)state;
    shared->sequence = record->sequence + 1;
    __atomic_store_n(&shared->intended_end, end, __ATOMIC_RELEASE);
    if (is_large()) {
        memset(shared->window, 0, 24);
        __atomic_store_n(&log_header->spooled, end, __ATOMIC_RELEASE);
    }
    __atomic_store_n(&log_header->committed, end, __ATOMIC_RELEASE);
    __atomic_store_n(&log_header->records, shared->sequence, __ATOMIC_RELEASE);
    drop_large();
}

void log_commit(struct record *record, long result)
{
    finish(record, result, DONE);
}

void log_cancel(struct record *record)
{
    if (!log_header || !record)
        return;
    ((struct record *)next_place())->state = EMPTY;
    drop_large();
}

void log_gap(const struct call *call, const char *reason)
{
    struct record *record = log_begin(K_GAP, call);
    if (!record)
        return;
    log_name(record, reason, strlen(reason));
    log_commit(record, 0);
}
