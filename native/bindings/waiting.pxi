# How calls that wait end: by Ctrl-C, by a timeout, and with which exception. Each module that includes
# this has its own. It needs threading, PyErr_CheckSignals, Patience, Status, Code and error_of.

# What a signal handler raised, by thread.
cdef dict raised = {}


cdef cbool interrupted() noexcept with gil:
    try:
        PyErr_CheckSignals()
    except BaseException as error:
        raised[threading.get_ident()] = error
        return True
    return False


cdef int check(Status status, str context="") except -1:
    if status.ok():
        return 0
    if status.code() == Code.kCancelled:
        error = raised.pop(threading.get_ident(), None)
        if error is not None:
            raise error
    raise error_of(<int>status.code(), context + status.message().decode(errors="replace"))


cdef Patience patience_of(timeout) except *:
    cdef Patience patience
    patience.interrupted = interrupted
    patience.deadline = INT64_MAX
    if timeout is not None:
        patience.deadline = deadline_in(timeout)
    return patience
