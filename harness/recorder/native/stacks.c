/*
 * The Python stack of the calling thread, read in a signal handler.
 *
 * Method: the thread that made the call is the one that the handler runs in, so its frames do not
 * change meanwhile, with the interpreter's lock or without. Frames are walked as faulthandler walks
 * them, by the interpreter's own structures; nothing is allocated, no reference is taken, no lock.
 * A stack is known by a hash over code objects and instructions, and its text is made once.
 *
 * Limits: CPython 3.11 to 3.13. A code object that was freed and made anew at the same address,
 * with the same name and first line, passes for the old one.
 */
#define Py_BUILD_CORE 1
#include <Python.h>
#if PY_VERSION_HEX < 0x030B0000 || PY_VERSION_HEX >= 0x030E0000
#error "the frames of this version of CPython are not known"
#endif
#include <internal/pycore_frame.h>
#include <internal/pycore_code.h>
#include <stdint.h>

#define FRAMES_MAX 64
#define EXPORT __attribute__((visibility("default")))

static _PyInterpreterFrame *current(void)
{
    PyThreadState *thread = PyGILState_GetThisThreadState();
    if (!thread)
        return NULL;
#if PY_VERSION_HEX >= 0x030D0000
    return thread->current_frame;
#else
    return thread->cframe ? thread->cframe->current_frame : NULL;
#endif
}

static PyCodeObject *code_of(_PyInterpreterFrame *frame)
{
#if PY_VERSION_HEX >= 0x030D0000
    PyObject *code = frame->f_executable;
#else
    PyObject *code = (PyObject *)frame->f_code;
#endif
    /* Frames that C code makes for itself hold something else, or nothing. */
    return code && PyCode_Check(code) ? (PyCodeObject *)code : NULL;
}

static int is_complete(_PyInterpreterFrame *frame)
{
#if PY_VERSION_HEX >= 0x030C0000
    if (frame->owner == FRAME_OWNED_BY_CSTACK)
        return 0;
#endif
    return frame->owner == FRAME_OWNED_BY_GENERATOR ||
           _PyInterpreterFrame_LASTI(frame) >= code_of(frame)->_co_firsttraceable;
}

EXPORT uint64_t recorder_stack_hash(void)
{
    uint64_t hash = 0;
    int count = 0;
    for (_PyInterpreterFrame *f = current(); f && count < FRAMES_MAX; f = f->previous) {
        PyCodeObject *code = code_of(f);
        if (!code || !is_complete(f))
            continue;
        hash ^= (uint64_t)(uintptr_t)code + (uint64_t)_PyInterpreterFrame_LASTI(f);
        hash *= 0x9e3779b97f4a7c15ull;
        hash ^= (uint64_t)(uintptr_t)code->co_name ^ (uint64_t)code->co_firstlineno << 32;
        hash ^= hash >> 32;
        count++;
    }
    return count && !hash ? 1 : hash;
}

struct text {
    char *at, *end;
};

static void put_byte(struct text *text, char byte)
{
    if (text->at < text->end)
        *text->at++ = byte;
}

static void put_number(struct text *text, int number)
{
    char digits[12];
    int count = 0;
    unsigned rest = number < 0 ? 0 : (unsigned)number;
    do
        digits[count++] = (char)('0' + rest % 10);
    while (rest /= 10);
    while (count)
        put_byte(text, digits[--count]);
}

static void put_character(struct text *text, Py_UCS4 c)
{
    if (c < 0x20)
        c = '?';
    if (c < 0x80) {
        put_byte(text, (char)c);
    } else if (c < 0x800) {
        put_byte(text, (char)(0xc0 | c >> 6));
        put_byte(text, (char)(0x80 | (c & 63)));
    } else if (c < 0x10000) {
        put_byte(text, (char)(0xe0 | c >> 12));
        put_byte(text, (char)(0x80 | (c >> 6 & 63)));
        put_byte(text, (char)(0x80 | (c & 63)));
    } else {
        put_byte(text, (char)(0xf0 | c >> 18));
        put_byte(text, (char)(0x80 | (c >> 12 & 63)));
        put_byte(text, (char)(0x80 | (c >> 6 & 63)));
        put_byte(text, (char)(0x80 | (c & 63)));
    }
}

static void put_string(struct text *text, PyObject *string)
{
    if (!string || !PyUnicode_Check(string))
        return;
#if PY_VERSION_HEX < 0x030C0000
    if (!PyUnicode_IS_READY(string))
        return;
#endif
    for (Py_ssize_t i = 0; i < PyUnicode_GET_LENGTH(string); i++)
        put_character(text, PyUnicode_READ_CHAR(string, i));
}

/* One frame a line, innermost first: FILE:LINE FUNCTION. Returns the number of bytes. */
EXPORT uint32_t recorder_stack_text(char *room, uint32_t size)
{
    struct text text = {room, room + size};
    int count = 0;
    for (_PyInterpreterFrame *f = current(); f && count < FRAMES_MAX; f = f->previous) {
        PyCodeObject *code = code_of(f);
        if (!code || !is_complete(f))
            continue;
        if (count++)
            put_byte(&text, '\n');
        put_string(&text, code->co_filename);
        put_byte(&text, ':');
        int at = _PyInterpreterFrame_LASTI(f) * (int)sizeof(_Py_CODEUNIT);
        put_number(&text, PyCode_Addr2Line(code, at));
        put_byte(&text, ' ');
        put_string(&text, code->co_name);
    }
    return (uint32_t)(text.at - room);
}

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, .m_name = "_stacks", .m_doc = "Reads Python's stack.", .m_size = -1};

PyMODINIT_FUNC PyInit__stacks(void)
{
    return PyModule_Create(&module);
}
