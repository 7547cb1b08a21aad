// Reads the secrets of the job from the file named by RDMA_TRANSPORT_SECRET_FILE, one per line.
#pragma once

#include <sys/stat.h>

#include <mutex>
#include <string>
#include <vector>

#include "base/status.h"

namespace rdma_transport {

constexpr size_t kMinSecretBytes = 32;

// Reads the file at `path`. The first secret is for signing. `warning` receives a problem that is
// not fatal, or stays empty. Returns InvalidArgument with the setting, the file, the problem and a
// fix. Messages never contain the content of the file.
Status ReadSecrets(const std::string& path, std::vector<std::string>* secrets,
                   std::string* warning);

// Caches the secrets and reads the file again when it changes. If the changed file is not valid,
// the previous secrets stay in effect. Thread-safe.
class SecretFile {
 public:
  // An empty path means that the job has no secret.
  explicit SecretFile(std::string path) : path_(std::move(path)) {}

  // Returns OK and no secrets if the job has none. Returns an error if the file has never been read
  // successfully.
  Status Get(std::vector<std::string>* secrets);

 private:
  // Identifies the content of the file.
  struct Version {
    dev_t device = 0;
    ino_t inode = 0;
    off_t size = 0;
    timespec modified = {};
    timespec changed = {};
    bool operator==(const Version& other) const;
  };
  Version Look() const;

  const std::string path_;
  std::mutex mu_;
  Version version_;
  std::vector<std::string> secrets_;
};

}  // namespace rdma_transport
