// A peer may name a tensor larger than the memory of this host. Its allocation must fail as it does
// without a sanitizer, not end the program.
extern "C" {

const char* __asan_default_options();
const char* __tsan_default_options();

const char* __asan_default_options() { return "allocator_may_return_null=1"; }
const char* __tsan_default_options() { return "allocator_may_return_null=1"; }

}  // extern "C"
