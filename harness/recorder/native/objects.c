/*
 * The objects under the root, as a set of (device, inode) in memory that all processes share.
 *
 * Method: filled by a walk at the start, then kept by the calls themselves: an object is known
 * because its folder was. Changed only under the log's lock, read without it. An object that lost
 * its last name is an orphan: still ours while somebody holds it open. When an orphan's number is
 * seen with a name again, the number was given to a file elsewhere, and is ours no longer.
 *
 * Limits: the capacity; where it is reached, the log says so and is refused.
 */
#include <errno.h>
#include <fcntl.h>
#include <string.h>

#include "recorder.h"

struct entry64 {
    uint64_t inode;
    int64_t offset;
    uint16_t size;
    uint8_t type;
    char name[];
};

static uint64_t hash_of(uint32_t device, uint64_t inode)
{
    uint64_t x = inode * 0x9e3779b97f4a7c15ull ^ device;
    return x ^ x >> 29;
}

static struct slot *probe(uint32_t device, uint64_t inode)
{
    uint64_t mask = shared->slots - 1;
    for (uint64_t at = hash_of(device, inode);; at++) {
        struct slot *slot = &shared->set[at & mask];
        if (__atomic_load_n(&slot->status, __ATOMIC_ACQUIRE) == S_EMPTY)
            return slot;
        if (slot->inode == inode && slot->device == device)
            return slot;
    }
}

struct slot *object_find(uint32_t device, uint64_t inode)
{
    struct slot *slot = probe(device, inode);
    return slot->status == S_LIVE || slot->status == S_ORPHAN ? slot : NULL;
}

/*
 * A file that was made a moment ago may not be in the set yet: whoever made it holds the lock until
 * it is. Where the lock is free, or was waited for, the second look is the truth.
 */
static struct slot *look_again(uint32_t device, uint64_t inode)
{
    uint32_t holder = __atomic_load_n(&shared->lock, __ATOMIC_ACQUIRE);
    if (holder && holder != (uint32_t)raw0(SYS_gettid)) {
        log_lock();
        log_unlock();
    }
    return object_find(device, inode);
}

struct slot *object_of(const struct stat *st)
{
    uint32_t device = (uint32_t)st->st_dev;
    struct slot *slot = object_find(device, st->st_ino);
    if (!slot)
        slot = look_again(device, st->st_ino);
    if (slot && slot->status == S_ORPHAN && st->st_nlink > 0) {
        slot->status = S_GONE;
        return NULL;
    }
    return slot;
}

struct slot *object_add(const struct stat *st)
{
    struct slot *slot = probe((uint32_t)st->st_dev, st->st_ino);
    if (slot->status == S_EMPTY) {
        if (shared->used >= shared->slots / 4 * 3) {
            log_header->lost = ENOMEM;
            return slot;
        }
        shared->used++;
        slot->inode = st->st_ino;
        slot->device = (uint32_t)st->st_dev;
    }
    slot->birth = ++shared->births;
    slot->type = st->st_mode & S_IFMT;
    __atomic_store_n(&slot->status, S_LIVE, __ATOMIC_RELEASE);
    return slot;
}

struct object object_id(const struct slot *slot)
{
    struct object id = {0, 0, 0};
    if (slot) {
        id.inode = slot->inode;
        id.device = slot->device;
        id.birth = slot->birth;
    }
    return id;
}

static int read_content(struct record **record, int directory, const char *name,
                        const struct stat *st)
{
    char *room = log_payload(record, (size_t)st->st_size);
    if (!room || !st->st_size)
        return room ? 0 : -ENOMEM;
    if (S_ISLNK(st->st_mode))
        return (int)raw4(SYS_readlinkat, directory, name, room, st->st_size);
    long fd = stub4(SYS_openat, directory, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW, 0);
    if (IS_ERROR(fd))
        return (int)fd;
    long done = 0, got = 1;
    while (done < st->st_size && got > 0) {
        got = raw4(SYS_pread64, fd, room + done, st->st_size - done, done);
        done += got > 0 ? got : 0;
    }
    stub1(SYS_close, fd);
    return done == st->st_size ? 0 : -EIO;
}

/* What to do with each entry of a folder. */
struct visit {
    struct object folder;
    enum kind kind; /* of the records; none where the objects leave the root */
    int depth, with_content;
};

static int visit_children(int directory, const char *name, const struct visit *visit)
{
    long fd = stub4(SYS_openat, directory, name,
                    O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW, 0);
    if (IS_ERROR(fd))
        return (int)fd;
    _Alignas(8) char buffer[2048];
    long got = 0;
    int failed = 0;
    while (!failed && (got = raw3(SYS_getdents64, fd, buffer, sizeof buffer)) > 0)
        for (long at = 0; at < got && !failed;) {
            const struct entry64 *entry = (const struct entry64 *)(buffer + at);
            at += entry->size;
            if (!strcmp(entry->name, ".") || !strcmp(entry->name, ".."))
                continue;
            if (visit->kind)
                failed = object_adopt((int)fd, entry->name, visit->folder, visit->kind,
                                      visit->depth - 1, visit->with_content);
            else
                failed = object_leave((int)fd, entry->name, visit->depth - 1);
        }
    stub1(SYS_close, fd);
    return failed ? failed : got < 0 ? (int)got : 0;
}

/*
 * Take an object that is there into the set and into the log, and all below it where it is a
 * folder. Its name is told where `folder` is one; the top of what comes from outside has none yet.
 */
int object_adopt(int directory, const char *name, struct object folder, enum kind kind, int depth,
                 int with_content)
{
    struct stat st;
    long failed = stat_at(directory, name, &st, AT_SYMLINK_NOFOLLOW);
    if (failed)
        return (int)failed;
    if (depth <= 0)
        return -ELOOP;
    struct slot *slot = object_of(&st);
    int is_known = slot != NULL;
    if (!is_known)
        slot = object_add(&st);
    if (is_known && !folder.birth)
        return 0;
    struct record *record = log_begin(kind, NULL);
    if (!record)
        return -EFBIG;
    record->a = object_id(slot);
    record->mode = st.st_mode;
    record->length = (uint64_t)st.st_size;
    record->to = folder;
    if (folder.birth)
        log_name(record, name, strlen(name));
    if (with_content ? S_ISLNK(st.st_mode) || S_ISREG(st.st_mode)
                     : !is_known && S_ISLNK(st.st_mode)) {
        int wrong = read_content(&record, directory, name, &st);
        if (wrong < 0) {
            log_cancel(record);
            return wrong;
        }
    }
    log_commit(record, 0);
    struct visit visit = {object_id(slot), kind, depth, with_content};
    return S_ISDIR(st.st_mode) && !is_known ? visit_children(directory, name, &visit) : 0;
}

/* The opposite: what was moved out of the root, and all below it, is ours no longer. */
int object_leave(int directory, const char *name, int depth)
{
    struct stat st;
    long failed = stat_at(directory, name, &st, AT_SYMLINK_NOFOLLOW);
    if (failed || depth <= 0)
        return failed ? (int)failed : -ELOOP;
    struct slot *slot = object_of(&st);
    if (slot && (S_ISDIR(st.st_mode) || st.st_nlink <= 1))
        slot->status = S_GONE;
    struct visit visit = {{0, 0, 0}, 0, depth, 0};
    return S_ISDIR(st.st_mode) ? visit_children(directory, name, &visit) : 0;
}
