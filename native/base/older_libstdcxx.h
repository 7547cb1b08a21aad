// Included by the compiler before each source, so that what Debian 12's compiler builds also loads
// on RHEL 9 and Ubuntu 22.04.
//
// GCC 12 gave one function that is used here a new version in libstdc++. Its code is that of the
// old version, which all have.
#pragma once

#if defined(__linux__) && (defined(__x86_64__) || defined(__aarch64__))
__asm__(
    ".symver _ZNSt18condition_variable4waitERSt11unique_lockISt5mutexE,"
    "_ZNSt18condition_variable4waitERSt11unique_lockISt5mutexE@GLIBCXX_3.4.11");
#endif
