# Compiles for aarch64 on another processor, and runs the tests with qemu-user. On Debian:
# apt-get install g++-aarch64-linux-gnu qemu-user
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
# The second folder is for libfabric.so.1 of aarch64 and the libraries that it needs.
set(CMAKE_CROSSCOMPILING_EMULATOR
    qemu-aarch64 -L /usr/aarch64-linux-gnu -E LD_LIBRARY_PATH=${CMAKE_BINARY_DIR}/root)
