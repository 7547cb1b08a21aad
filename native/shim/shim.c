/* TensorFlow dlopens every file in site-packages/tensorflow-plugins/ while it is imported, and one
 * that cannot be loaded makes `import tensorflow` itself fail. So what lies there is this guard: it
 * needs only libc, looks whether the plugin fits, loads it, and turns every failure into one line. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DIRECTORY "/../rdma_transport/lib/"
#define REINSTALL "pip install --force-reinstall --no-deps rdma_transport-*.whl"

/* In the order in which they need each other; the last one is the plugin. */
static const char* const kLibraries[] = {"librdma_transport_core.so",
                                         "librdma_transport_analyzer.so",
                                         "librdma_transport_tensorflow.so"};
enum { kLibraryCount = sizeof(kLibraries) / sizeof(kLibraries[0]), kPathSize = 4096 };

static void say(const char* what, const char* detail, const char* fix) {
  fprintf(stderr, "rdma_transport: not loaded: %s%.900s; %s\n", what, detail, fix);
}

static int disabled(void) {
  const char* value = getenv("RDMA_TRANSPORT_DISABLE");
  return value != NULL && (strcmp(value, "1") == 0 || strcmp(value, "true") == 0);
}

/* The version of the TensorFlow in this process, or null. */
static const char* tensorflow_version(void) {
  const char* (*version)(void) = NULL;
  const char* libraries[] = {NULL, "libtensorflow_cc.so.2", "libtensorflow_framework.so.2"};
  for (size_t i = 0; i < sizeof(libraries) / sizeof(libraries[0]) && version == NULL; ++i) {
    void* library = libraries[i] == NULL ? NULL : dlopen(libraries[i], RTLD_LAZY | RTLD_NOLOAD);
    if (libraries[i] != NULL && library == NULL) continue;
    *(void**)&version = dlsym(library == NULL ? RTLD_DEFAULT : library, "TF_Version");
    if (library != NULL) dlclose(library);
  }
  return version == NULL ? NULL : version();
}

/* Whether two versions agree in major and minor number; the C++ classes change with the minor. */
static int same_minor(const char* a, const char* b) {
  int a_major = -1, a_minor = -1, b_major = -2, b_minor = -2;
  if (sscanf(a, "%d.%d", &a_major, &a_minor) != 2) return 0;
  if (sscanf(b, "%d.%d", &b_major, &b_minor) != 2) return 0;
  return a_major == b_major && a_minor == b_minor;
}

/* CRC-32, as zlib has it; *size is how many bytes there were. 0 if it cannot be read. */
static int checksum(const char* path, uint32_t* crc, long* size) {
  FILE* file = fopen(path, "rb");
  if (file == NULL) return 0;
  uint32_t table[256];
  for (uint32_t i = 0; i < 256; ++i) {
    table[i] = i;
    for (int bit = 0; bit < 8; ++bit) table[i] = table[i] >> 1 ^ (table[i] & 1 ? 0xEDB88320u : 0);
  }
  unsigned char part[1 << 14];
  size_t n;
  *crc = 0xFFFFFFFFu;
  *size = 0;
  while ((n = fread(part, 1, sizeof(part), file)) > 0) {
    for (size_t i = 0; i < n; ++i) *crc = table[(*crc ^ part[i]) & 0xFF] ^ *crc >> 8;
    *size += (long)n;
  }
  *crc = ~*crc;
  const int whole = !ferror(file);
  fclose(file);
  return whole;
}

/* What was written down of a library when it was installed (record.py). */
static int recorded(const char* directory, const char* name, uint32_t* crc, long* size) {
  char path[kPathSize], found[128];
  snprintf(path, sizeof(path), "%slibraries.crc32", directory);
  FILE* file = fopen(path, "r");
  if (file == NULL) return 0;
  int matches = 0;
  while (!matches && fscanf(file, "%8" SCNx32 " %ld %127s", crc, size, found) == 3) {
    matches = strcmp(found, name) == 0;
  }
  fclose(file);
  return matches;
}

/* Whether a library is as it was installed. One that a full disk cut short would kill this process
 * while it is loaded: the kernel has nothing to map there. */
static int is_whole(const char* directory, const char* name) {
  char path[kPathSize], why[kPathSize + 128];
  uint32_t crc = 0, installed_crc = 0;
  long size = 0, installed_size = 0;
  snprintf(path, sizeof(path), "%s%s", directory, name);
  if (!recorded(directory, name, &installed_crc, &installed_size)) {
    snprintf(why, sizeof(why), "%slibraries.crc32 does not list %s", directory, name);
  } else if (!checksum(path, &crc, &size)) {
    snprintf(why, sizeof(why), "%s cannot be read", path);
  } else if (size != installed_size) {
    snprintf(why, sizeof(why), "%s has %ld bytes instead of %ld", path, size, installed_size);
  } else if (crc != installed_crc) {
    snprintf(why, sizeof(why), "%s was changed after it was installed", path);
  } else {
    return 1;
  }
  say("", why, "is the disk full? " REINSTALL);
  return 0;
}

__attribute__((constructor)) static void load_plugin(void) {
  static int loaded = 0;
  if (loaded++ != 0) return;
  if (disabled()) {
    say("RDMA_TRANSPORT_DISABLE is set", "", "unset it to use protocol='rdma' in this process");
    return;
  }
  const char* version = tensorflow_version();
  if (version == NULL) {
    say("there is no TensorFlow in this process", "", "it is loaded by `import tensorflow`");
    return;
  }
  if (!same_minor(version, RDMA_TRANSPORT_TF_VERSION)) {
    say("it was built for TensorFlow " RDMA_TRANSPORT_TF_VERSION " and this is ", version,
        "pip install tensorflow==" RDMA_TRANSPORT_TF_VERSION
        " (tensorflow-cpu if you have that), or an rdma_transport for your version");
    return;
  }
  Dl_info self;
  char directory[kPathSize - 128], path[kPathSize];
  if (dladdr((void*)&load_plugin, &self) == 0 || self.dli_fname == NULL) {
    say("its own file cannot be found", "", REINSTALL);
    return;
  }
  const char* slash = strrchr(self.dli_fname, '/');
  const int length = slash == NULL ? 1 : (int)(slash - self.dli_fname);
  snprintf(directory, sizeof(directory), "%.*s" DIRECTORY, length,
           slash == NULL ? "." : self.dli_fname);
  for (int i = 0; i < kLibraryCount; ++i) {
    if (!is_whole(directory, kLibraries[i])) return;
  }
  snprintf(path, sizeof(path), "%s%s", directory, kLibraries[kLibraryCount - 1]);
  /* Registered factories point into the plugin, so it must stay. */
  if (dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE) == NULL) {
    const char* error = dlerror();
    say("", error == NULL ? "unknown error" : error, REINSTALL);
  }
}
