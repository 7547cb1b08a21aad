// The secrets of the job, from the file that RDMA_TRANSPORT_SECRET_FILE names: one on each line.
#pragma once

#include <sys/stat.h>

#include <mutex>
#include <string>
#include <vector>

#include "base/status.h"

namespace rdma_transport {

constexpr size_t kMinSecretBytes = 32;

// What is in the file at `path`, and in `warning` what is not as it should be, or nothing. The
// first secret is for signing. InvalidArgument names the setting, the file, what is wrong and what
// to do, and shows nothing of the content.
Status ReadSecrets(const std::string& path, std::vector<std::string>* secrets,
                   std::string* warning);

// Thread-safe. Reads the file again when it has changed; a file that went bad leaves the secrets
// that were read before in force.
class SecretFile {
 public:
  // Empty: the job has no secret.
  explicit SecretFile(std::string path) : path_(std::move(path)) {}

  // OK and none: the job has no secret. An error if it has one that was never read successfully.
  Status Get(std::vector<std::string>* secrets);

 private:
  // Of a file's content.
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
