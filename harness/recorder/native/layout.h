/*
 * What stands in the oplog and in the recorder's shared state: docs/oplog-format.md in C.
 *
 * The log is a header of one page and records, each a multiple of 8 bytes, in one global order. A
 * record is written under a lock that is held while the call is made, so that the order of records
 * is the order of effects. The state file holds what the recorded processes share besides.
 */
#ifndef RECORDER_LAYOUT_H
#define RECORDER_LAYOUT_H

#include <stddef.h>
#include <stdint.h>

#define OPLOG_MAGIC "CCOPLOG"
#define OPLOG_VERSION 1u
#define HEADER_SIZE 4096u
#define WINDOW_SIZE (512u << 10) /* the newest records, in memory that processes share */
#define ROOM (64u << 10)          /* of it, kept free for a record's fixed part and names */
#define ROOT_PATH_MAX 3072u

struct object {
    uint64_t inode;
    uint32_t device; /* as stat(2) shows it on Linux: 12 bits major, 20 minor, encoded */
    uint32_t birth;  /* 0: no object */
};

struct header {
    char magic[8];
    uint32_t version, header_size;
    uint64_t committed; /* offset of the end of the last whole record */
    uint64_t records;
    uint32_t record_size; /* of the fixed part */
    uint32_t machine;     /* ELF e_machine */
    struct object root;
    uint32_t lost;    /* errno for which recording stopped, 0 while the log is whole */
    uint32_t options; /* enum option */
    uint32_t is_closed;
    uint32_t path_size;
    uint64_t seed, clock_start, clock_tick, disabled[2];
    uint64_t spooled; /* up to here records are in the file, from here on in the window */
    uint32_t check; /* CRC-32 of the header, with what changes and the check itself 0 */
    uint32_t reserved;
    char path[ROOT_PATH_MAX];
};

enum record_state { EMPTY = 0, BEGUN = 1, DONE = 2, ABANDONED = 3 };

struct record {
    uint32_t size; /* all of it, padding included */
    uint16_t call; /* number of the system call on this machine, 0xffff: none */
    uint8_t kind, state;
    uint32_t check;         /* CRC-32 of everything before the payload, with this field 0 */
    uint32_t payload_check; /* Adler-32 of the payload */
    uint64_t sequence;
    uint32_t process, thread;
    uint32_t stack; /* number of a stack record, 0: none */
    uint32_t mode;  /* st_mode after the call; fallocate's mode; a marker's kind */
    int64_t result;
    struct object a, b;       /* the object; the one that was replaced */
    struct object from, to;   /* folders of the first and second name */
    uint64_t offset, length;  /* see the table of kinds */
    uint32_t flags;           /* of the descriptor, the rename, the open */
    uint32_t call_flags;      /* RWF_*, sync_file_range's, msync's */
    uint16_t name_size, second_size;
    uint32_t payload_size;
};
#define RECORD_SIZE 144u
_Static_assert(sizeof(struct record) == RECORD_SIZE, "the format is fixed");

enum kind {
    K_BASE = 1, K_PROCESS, K_STACK, K_MARKER, K_GAP, K_ADOPT,
    K_OPEN = 10, K_CREATE, K_TMPFILE, K_CLOSE, K_DUP,
    K_WRITE = 20, K_TRUNCATE, K_ALLOCATE,
    K_RENAME = 30, K_LINK, K_SYMLINK, K_UNLINK, K_MKDIR, K_RMDIR, K_MKNOD,
    K_CHMOD = 40, K_CHOWN, K_SETXATTR, K_REMOVEXATTR, K_UTIMES,
    K_FSYNC = 50, K_FDATASYNC, K_SYNC, K_SYNCFS, K_MSYNC, K_SYNC_RANGE,
    K_MAPPING = 60,
    K_EXEC = 70, K_EXIT,
};

/* OPT_NO_CALLS: determinism only; no call is trapped for the log, and nothing is recorded. */
enum option { OPT_STACKS = 1, OPT_RANDOM = 2, OPT_CLOCK = 4, OPT_NO_CALLS = 8 };

/* The set of objects under the root: open addressing, never shrinks. */
enum slot_status { S_EMPTY = 0, S_LIVE = 1, S_ORPHAN = 2, S_GONE = 3 };
struct slot {
    uint64_t inode;
    uint32_t device, birth;
    uint32_t status; /* written last */
    uint32_t type;   /* S_IFMT bits */
};

#define STACK_SLOTS (1u << 16)
#define PROCESS_SLOTS (1u << 12)
#define STATE_PATH_MAX 4096u

struct state {
    char magic[8];
    uint32_t is_active;
    uint32_t lock; /* thread id of the holder, 0: free */
    uint32_t waiters, births;
    uint64_t log_size_max, sequence, intended_end;
    uint64_t slots, used; /* capacity of the set, a power of two */
    uint64_t clock, tick, seed, drawn;
    uint64_t disabled[2]; /* kinds that a test build does not record */
    uint32_t options, stacks;
    char log_path[STATE_PATH_MAX], library[STATE_PATH_MAX];
    struct { uint64_t hash; uint64_t number; } stack[STACK_SLOTS];
    uint32_t process[PROCESS_SLOTS];
    char window[WINDOW_SIZE] __attribute__((aligned(4096)));
    struct slot set[];
};
#define WINDOW_AT 0x107000u /* readers look here */
_Static_assert(offsetof(struct state, window) == WINDOW_AT, "the format is fixed");

#endif
