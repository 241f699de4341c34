/*
 * Calls that change the content of a file: the write family, copies made by the kernel, sizes.
 *
 * Bytes are copied after the call, as many as it says that it wrote, so that a bad pointer or a
 * short write is the kernel's business and not ours. What the kernel copied from elsewhere is read
 * back from the file. A call that failed changed nothing, and leaves no record.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/uio.h>

#include "recorder.h"

#ifndef RWF_APPEND
#define RWF_APPEND 16
#endif
#define RWF_IN_PLACE 32 /* RWF_NOAPPEND of Linux 6.9 */
#define CURRENT (-1)

static int is_ours(int fd, struct stat *st)
{
    st->st_mode = 0;
    return stat_fd(fd, st) == 0 && S_ISREG(st->st_mode) && object_of(st) != NULL;
}

/* Anything but a regular file or a folder may keep the caller waiting. */
static int may_wait(const struct stat *st)
{
    return !S_ISREG(st->st_mode) && !S_ISDIR(st->st_mode);
}

static void copy_vector(char *room, const struct iovec *vector, size_t count, size_t size)
{
    for (size_t i = 0; i < count && size; i++) {
        size_t n = vector[i].iov_len < size ? vector[i].iov_len : size;
        memcpy(room, vector[i].iov_base, n);
        room += n, size -= n;
    }
}

static int read_back(int fd, char *room, size_t size, uint64_t offset)
{
    char link[32];
    number_path(link, "/proc/self/fd/", fd);
    long file = stub4(SYS_openat, AT_FDCWD, link, O_RDONLY | O_CLOEXEC, 0);
    if (IS_ERROR(file))
        return (int)file;
    size_t done = 0;
    long got = 1;
    while (done < size && got > 0) {
        got = raw4(SYS_pread64, file, room + done, size - done, offset + done);
        done += got > 0 ? (size_t)got : 0;
    }
    stub1(SYS_close, file);
    return done == size ? 0 : -EIO;
}

/* Where a write will go: at an offset that was given, where the file ends, or where it stands. */
static uint64_t true_offset(int fd, int64_t given, uint32_t flags, uint32_t call_flags)
{
    int appends = (flags & O_APPEND) && !(call_flags & RWF_IN_PLACE);
    if (appends || (call_flags & RWF_APPEND)) {
        struct stat st;
        stat_fd(fd, &st);
        return (uint64_t)st.st_size;
    }
    return given == CURRENT ? (uint64_t)raw3(SYS_lseek, fd, 0, SEEK_CUR) : (uint64_t)given;
}

struct source {
    const void *bytes; /* one buffer, or */
    const struct iovec *vector; /* several, or neither: the kernel copied, read it back */
    size_t count, length;
};

static size_t length_of(const struct iovec *vector, size_t count)
{
    size_t length = 0;
    for (size_t i = 0; i < count && i < 1024; i++)
        length += vector[i].iov_len;
    return length;
}

static long write_call(struct call *call, int fd, int64_t given, uint32_t call_flags,
                       const struct source *source)
{
    struct stat st;
    if (is_off(K_WRITE) || !is_ours(fd, &st))
        return pass(call, is_off(K_WRITE) || may_wait(&st));
    log_lock();
    struct record *record = log_begin(K_WRITE, call);
    if (record) {
        record->a = object_id(object_of(&st));
        record->flags = (uint32_t)raw2(SYS_fcntl, fd, F_GETFL);
        record->call_flags = call_flags;
        record->offset = true_offset(fd, given, record->flags, call_flags);
        record->length = source->length;
    }
    long result = perform(call);
    if (record && !IS_ERROR(result) && result > 0) {
        if (source->vector) /* looked at only now, when the kernel has found it readable */
            record->length = length_of(source->vector, source->count);
        char *room = log_payload(&record, (size_t)result);
        int failed = room ? 0 : -EFBIG;
        if (room && source->bytes)
            memcpy(room, source->bytes, (size_t)result);
        else if (room && source->vector)
            copy_vector(room, source->vector, source->count, (size_t)result);
        else if (room)
            failed = read_back(fd, room, (size_t)result, record->offset);
        if (failed && room) {
            log_cancel(record);
            log_gap(call, "what the kernel copied into a file cannot be read back");
        } else {
            log_commit(record, result);
        }
    } else {
        log_cancel(record);
    }
    log_unlock();
    return result;
}

static long vector_call(struct call *call, int64_t given, uint32_t call_flags)
{
    struct stat st;
    if (!is_ours((int)call->a[0], &st))
        return pass(call, may_wait(&st));
    struct source source = {NULL, (const struct iovec *)call->a[1], (size_t)call->a[2], 0};
    return write_call(call, (int)call->a[0], given, call_flags, &source);
}

static int64_t given_offset(long pointer)
{
    return pointer ? *(const int64_t *)pointer : CURRENT;
}

/* From a pipe: wait for it without the lock, then take what is there. */
static long splice_call(struct call *call)
{
    struct stat st;
    int fd = (int)call->a[2];
    if (!is_ours(fd, &st))
        return pass(call, 1);
    struct source source = {NULL, NULL, 0, (size_t)call->a[4]};
    int64_t given = given_offset(call->a[3]);
    struct call now = *call;
    now.a[5] |= 2; /* SPLICE_F_NONBLOCK */
    for (;;) {
        long result = write_call(&now, fd, given, 0, &source);
        if (result != -EAGAIN || (call->a[5] & 2))
            return result;
        struct pollfd wait = {(int)call->a[0], POLLIN, 0};
        struct call poll = {SYS_ppoll, {(long)&wait, 1, 0, 0, 0, 0}, call->uc};
        result = pass(&poll, 1);
        if (IS_ERROR(result))
            return result;
    }
}

static long size_call(struct call *call, enum kind kind, const struct stat *st, int fd)
{
    if (is_off(kind) || !S_ISREG(st->st_mode) || !object_of(st))
        return pass(call, 0);
    log_lock();
    struct record *record = log_begin(kind, call);
    if (record) {
        record->a = object_id(object_of(st));
        record->flags = fd >= 0 ? (uint32_t)raw2(SYS_fcntl, fd, F_GETFL) : 0;
        record->offset = kind == K_ALLOCATE ? (uint64_t)call->a[2] : 0;
        record->length = (uint64_t)(kind == K_ALLOCATE ? call->a[3] : call->a[1]);
        record->mode = kind == K_ALLOCATE ? (uint32_t)call->a[1] : 0;
    }
    long result = perform(call);
    if (IS_ERROR(result))
        log_cancel(record);
    else
        log_commit(record, result);
    log_unlock();
    return result;
}

long data_call(struct call *call, int *known)
{
    const long *a = call->a;
    struct stat st;
    struct source one = {(const void *)a[1], NULL, 0, (size_t)a[2]};
    struct source kernel = {NULL, NULL, 0, 0};
    *known = 1;
    memset(&st, 0, sizeof st);
    switch (call->nr) {
    case SYS_write:
        return write_call(call, (int)a[0], CURRENT, 0, &one);
    case SYS_pwrite64:
        return write_call(call, (int)a[0], a[3], 0, &one);
    case SYS_writev:
        return vector_call(call, CURRENT, 0);
    case SYS_pwritev:
        return vector_call(call, a[3], 0);
    case SYS_pwritev2:
        return vector_call(call, a[3], (uint32_t)a[5]);
    case SYS_copy_file_range:
        if (stat_fd((int)a[2], &st) || !object_of(&st))
            return pass(call, 0);
        kernel.length = (size_t)a[4];
        return write_call(call, (int)a[2], given_offset(a[3]), 0, &kernel);
    case SYS_sendfile:
        kernel.length = (size_t)a[3];
        return write_call(call, (int)a[0], CURRENT, 0, &kernel);
    case SYS_splice:
        return splice_call(call);
    case SYS_ftruncate:
        stat_fd((int)a[0], &st);
        return size_call(call, K_TRUNCATE, &st, (int)a[0]);
    case SYS_truncate:
        stat_at(AT_FDCWD, (const char *)a[0], &st, 0);
        return size_call(call, K_TRUNCATE, &st, -1);
    case SYS_fallocate:
        stat_fd((int)a[0], &st);
        return size_call(call, K_ALLOCATE, &st, (int)a[0]);
    case SYS_ioctl: /* FICLONE, FICLONERANGE, FIDEDUPERANGE: callers fall back to a copy */
        if (stat_fd((int)a[0], &st) == 0 && object_of(&st))
            return -EOPNOTSUPP;
        return pass(call, 0);
    }
    *known = 0;
    return 0;
}
