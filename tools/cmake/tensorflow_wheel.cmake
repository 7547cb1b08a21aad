# The target `tensorflow_wheel`: the headers and libraries inside the installed TensorFlow wheel.
find_package(Python REQUIRED COMPONENTS Interpreter)
execute_process(
  COMMAND ${Python_EXECUTABLE} -c
          "import importlib.util as u; print(u.find_spec('tensorflow').submodule_search_locations[0])"
  OUTPUT_VARIABLE TENSORFLOW_DIR
  OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
execute_process(
  COMMAND ${Python_EXECUTABLE} -c
          "import importlib.metadata as m; print(m.version(m.packages_distributions()['tensorflow'][0]))"
  OUTPUT_VARIABLE TENSORFLOW_VERSION
  OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
message(STATUS "TensorFlow ${TENSORFLOW_VERSION}")
# See docs/porting.md before these change.
if(TENSORFLOW_VERSION VERSION_LESS 2.18 OR TENSORFLOW_VERSION VERSION_GREATER_EQUAL 2.22)
  message(FATAL_ERROR "rdma_transport can be built for TensorFlow 2.18 to 2.21, and ${Python_EXECUTABLE} "
                      "has ${TENSORFLOW_VERSION}")
endif()

file(GLOB TENSORFLOW_EXTERNAL LIST_DIRECTORIES true ${TENSORFLOW_DIR}/include/external/*/src
     ${TENSORFLOW_DIR}/include/external/*/include)
list(FILTER TENSORFLOW_EXTERNAL EXCLUDE REGEX "boringssl/src")

add_library(tensorflow_wheel INTERFACE)
target_include_directories(tensorflow_wheel SYSTEM INTERFACE ${TENSORFLOW_DIR}/include
                                                             ${TENSORFLOW_EXTERNAL})
# NDEBUG must match the wheel: class layouts differ without it.
target_compile_definitions(tensorflow_wheel INTERFACE _GLIBCXX_USE_CXX11_ABI=1
                                                      EIGEN_MAX_ALIGN_BYTES=64 NDEBUG)
target_link_directories(tensorflow_wheel INTERFACE ${TENSORFLOW_DIR})
# GNU ld takes several times as long to read the symbols of these libraries.
include(CheckLinkerFlag)
check_linker_flag(CXX -fuse-ld=gold HAS_GOLD)
if(HAS_GOLD)
  target_link_options(tensorflow_wheel INTERFACE -fuse-ld=gold)
endif()
# An undefined symbol is an error here, not on a user's import.
target_link_options(tensorflow_wheel INTERFACE -Wl,--no-undefined -Wl,--no-as-needed)
target_link_libraries(tensorflow_wheel INTERFACE -l:libtensorflow_framework.so.2
                                                 -l:libtensorflow_cc.so.2)
