"""
Machine code that lets a ctypes callback run while a Python exception is pending.

Method: SQLite reports the end of a statement also when a cursor is reset or collected, and that
happens while an exception unwinds the frame that owns the cursor. A ctypes callback entered then
loses the exception: CPython 3.11 to 3.13 answered with SystemError or a segmentation fault.
Nothing that runs as Python can put the exception back, since a call that returns with one set is
itself an error. So SQLite is given the address of these few instructions, which take the
interpreter lock, put the exception aside, call the callback, and put everything back:

    state = PyGILState_Ensure()
    PyErr_Fetch(&type, &value, &traceback)
    callback(code, context, statement, detail)
    PyErr_Restore(type, value, traceback)
    PyGILState_Release(state)
    return 0

The instructions are position independent; the five addresses follow them as a table of 64-bit
words, in the order of the calls. The page is written through a memory file and mapped read and
execute only.

Covered: Linux on x86-64 (assembled with GNU as) and arm64 (assembled with llvm-mc, run in an
emulator). Not covered: other machines, and kernels that refuse executable mappings.
"""

from __future__ import annotations

import ctypes
import os
import platform
from typing import Any

_X86_64 = bytes.fromhex(
    "f30f1efa"  # endbr64
    "53 55 4154 4155 4156"  # push rbx, rbp, r12, r13, r14
    "4883ec20"  # sub rsp, 32: three words for the exception, one to align
    "89fb 4889f5 4989d4 4989cd"  # keep the arguments: ebx=edi rbp=rsi r12=rdx r13=rcx
    "ff1557000000"  # call [PyGILState_Ensure]
    "4189c6"  # mov r14d, eax
    "488d3c24 488d742408 488d542410"  # lea rdi, rsi, rdx: the three words
    "ff1548000000"  # call [PyErr_Fetch]
    "89df 4889ee 4c89e2 4c89e9"  # the arguments again
    "ff153f000000"  # call [callback]
    "488b3c24 488b742408 488b542410"  # mov rdi, rsi, rdx: the three words
    "ff1533000000"  # call [PyErr_Restore]
    "4489f7"  # mov edi, r14d
    "ff1532000000"  # call [PyGILState_Release]
    "31c0 4883c420"  # xor eax, eax; add rsp, 32
    "415e 415d 415c 5d 5b c3"  # pop all; ret
    "0f1f00"  # to a multiple of eight
)

_ARM64 = bytes.fromhex(
    "fd7bbba9 fd030091"  # stp x29, x30, [sp, -80]!; mov x29, sp
    "f35301a9 f55b02a9 f71b00f9"  # save x19 to x23
    "ff8300d1"  # sub sp, sp, 32: three words for the exception, one to align
    "f303002a f40301aa f50302aa f60303aa"  # keep the arguments: w19, x20, x21, x22
    "90030058 00023fd6"  # ldr x16, PyGILState_Ensure; blr x16
    "f703002a"  # mov w23, w0
    "e0030091 e1230091 e2430091"  # x0, x1, x2: the addresses of the three words
    "10030058 00023fd6"  # ldr x16, PyErr_Fetch; blr x16
    "e003132a e10314aa e20315aa e30316aa"  # the arguments again
    "90020058 00023fd6"  # ldr x16, callback; blr x16
    "e00740a9 e20b40f9"  # load x0, x1, x2: the three words
    "50020058 00023fd6"  # ldr x16, PyErr_Restore; blr x16
    "e003172a"  # mov w0, w23
    "30020058 00023fd6"  # ldr x16, PyGILState_Release; blr x16
    "00008052 ff830091"  # mov w0, 0; add sp, sp, 32
    "f71b40f9 f55b42a9 f35341a9 fd7bc5a8 c0035fd6"  # restore; ret
)

_CODE = {"x86_64": _X86_64, "aarch64": _ARM64}
_PROTECTION = 0x1 | 0x4  # PROT_READ | PROT_EXEC, <sys/mman.h>
_MAP_PRIVATE = 0x2
_MAP_FAILED = ctypes.c_void_p(-1).value


def exception_safe(callback: Any) -> int:
    """
    Return the address of a C function that calls *callback*, a ctypes function of SQLite's
    `xTrace` shape, with no exception pending, and leaves a pending one as it was.

    The code is never freed, and neither is *callback*: a connection may outlive every module.
    Raises: RuntimeError: this machine or kernel has no way to do it; the message says which.
    """
    code = _CODE.get(platform.machine())
    if code is None:
        raise RuntimeError(f"no machine code for {platform.machine()}, only for {sorted(_CODE)}")
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(callback))
    api = ctypes.pythonapi
    calls = (
        api.PyGILState_Ensure,
        api.PyErr_Fetch,
        callback,
        api.PyErr_Restore,
        api.PyGILState_Release,
    )
    table = b"".join(_address(function).to_bytes(8, "little") for function in calls)
    return _executable(code + table)


def _address(function: Any) -> int:
    address = ctypes.cast(function, ctypes.c_void_p).value
    assert address is not None
    return address


def _executable(code: bytes) -> int:
    """Map *code* read and execute only, and return its address; raises RuntimeError."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    try:
        descriptor = os.memfd_create("crashconform-trampoline")
        try:
            os.write(descriptor, code)
            address = libc.mmap(None, len(code), _PROTECTION, _MAP_PRIVATE, descriptor, 0)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise RuntimeError(f"no memory file for executable code: {error}") from error
    if address in (None, _MAP_FAILED):
        raise RuntimeError(f"no executable mapping: {os.strerror(ctypes.get_errno())}")
    return int(address)
