/* TensorFlow dlopens every file in site-packages/tensorflow-plugins/ while it is imported, and one
 * that cannot be loaded makes `import tensorflow` itself fail. So what lies there is this guard: it
 * needs only libc, looks whether the plugin fits, loads it, and turns every failure into one line. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PLUGIN "/../rdma_transport/lib/librdma_transport_tensorflow.so"

static void say(const char* what, const char* detail, const char* mend) {
  fprintf(stderr, "rdma_transport: not loaded: %s%.300s; %s\n", what, detail, mend);
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

__attribute__((constructor)) static void load_plugin(void) {
  static int loaded = 0;
  if (loaded++ != 0 || disabled()) return;
  const char* version = tensorflow_version();
  if (version == NULL) {
    say("there is no TensorFlow in this process", "", "it is loaded by `import tensorflow`");
    return;
  }
  if (!same_minor(version, RDMA_TRANSPORT_TF_VERSION)) {
    say("it was built for TensorFlow " RDMA_TRANSPORT_TF_VERSION " and this is ", version,
        "pip install tensorflow==" RDMA_TRANSPORT_TF_VERSION
        ", or an rdma_transport for your version");
    return;
  }
  Dl_info self;
  char path[4096];
  if (dladdr((void*)&load_plugin, &self) == 0 || self.dli_fname == NULL) {
    say("its own file cannot be found", "", "pip install --force-reinstall rdma_transport");
    return;
  }
  const char* slash = strrchr(self.dli_fname, '/');
  const int directory = slash == NULL ? 1 : (int)(slash - self.dli_fname);
  snprintf(path, sizeof(path), "%.*s" PLUGIN, directory, slash == NULL ? "." : self.dli_fname);
  /* Registered factories point into the plugin, so it must stay. */
  if (dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE) == NULL) {
    const char* error = dlerror();
    say("", error == NULL ? "unknown error" : error, "pip install --force-reinstall rdma_transport");
  }
}
