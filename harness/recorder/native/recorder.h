/*
 * The recorder's inside: what its parts offer each other. All of it runs in a signal handler, so it
 * calls nothing of libc but memcpy, memset and their like, takes no lock but the log's, and leaves
 * errno alone. Errors are negative numbers, as the kernel gives them.
 */
#ifndef RECORDER_H
#define RECORDER_H

#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>

#include "layout.h"
#include "machine.h"

#define INTERNAL __attribute__((visibility("hidden")))
#define EXPORT __attribute__((visibility("default")))
#define IS_ERROR(result) ((unsigned long)(result) >= (unsigned long)-4095)

struct call {
    long nr;
    long a[6];
    ucontext_t *uc;
};

/* One name: the folder that holds it, and the entry, which points into the caller's path. */
struct place {
    struct object folder; /* birth 0: outside of the root */
    const char *name;
    uint16_t size;
};


/* Fills hashes and, where text is asked for, writes it; both safe in a signal handler. */
typedef uint64_t (*stack_hash_function)(void);
typedef uint32_t (*stack_text_function)(char *text, uint32_t size);

INTERNAL extern struct header *log_header; /* and the log behind it; NULL where nothing is logged */
INTERNAL extern struct state *shared;
INTERNAL extern stack_hash_function stack_hash;
INTERNAL extern stack_text_function stack_text;

/* log.c */
INTERNAL void log_lock(void);
INTERNAL void log_unlock(void);
INTERNAL struct record *log_begin(enum kind kind, const struct call *call);
INTERNAL void log_name(struct record *record, const char *name, size_t size);
INTERNAL void log_second(struct record *record, const char *name, size_t size);
INTERNAL char *log_payload(struct record **record, size_t size); /* may move the record */
INTERNAL int log_spool(void);
INTERNAL void log_commit(struct record *record, long result);
INTERNAL void log_cancel(struct record *record);
INTERNAL void log_gap(const struct call *call, const char *reason);
INTERNAL void log_prepare_checks(void);
INTERNAL uint32_t log_crc(const void *data, size_t size);
INTERNAL int log_is_whole(void);

/* objects.c */
INTERNAL struct slot *object_find(uint32_t device, uint64_t inode);
INTERNAL struct slot *object_of(const struct stat *st);
INTERNAL struct slot *object_add(const struct stat *st);
INTERNAL struct object object_id(const struct slot *slot);
INTERNAL int object_adopt(int directory, const char *name, struct object folder, enum kind kind,
                          int depth, int with_content);
INTERNAL int object_leave(int directory, const char *name, int depth);

/* place.c */
INTERNAL int place_find(int directory, const char *path, struct place *place);
INTERNAL int place_of_descriptor(int fd, char *buffer, size_t size, struct place *place);
INTERNAL int number_path(char *text, const char *before, int number);

/* The handlers; each returns what the call returns. */
INTERNAL long pass(const struct call *call, int may_block);
INTERNAL long perform(const struct call *call);
INTERNAL int is_off(enum kind kind);
INTERNAL long data_call(struct call *call, int *known);
INTERNAL long name_call(struct call *call, int *known);
INTERNAL long meta_call(struct call *call, int *known);
INTERNAL long process_call(struct call *call, int *known);
INTERNAL long open_call(struct call *call, int directory, const char *path, uint64_t flags);

/* determinism.c */
INTERNAL long random_call(const struct call *call);
INTERNAL long clock_call(const struct call *call);
INTERNAL long random_file(const char *path, uint64_t flags);
INTERNAL int patch_vdso(uint32_t options);

/* filter.c, start.c */
INTERNAL int filter_install(uint32_t options, int is_first);
INTERNAL int handler_install(void);

static inline long stat_at(int fd, const char *path, struct stat *st, int flags)
{
    return raw4(SYS_newfstatat, fd, path, st, flags);
}
static inline long stat_fd(int fd, struct stat *st)
{
    return raw2(SYS_fstat, fd, st);
}

#endif
