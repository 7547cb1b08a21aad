#include "base/secret_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/log.h"

namespace rdma_transport {
namespace {

constexpr size_t kMaxFile = 4096;

Status Bad(const std::string& path, const std::string& what) {
  return Status(Code::kInvalidArgument, "RDMA_TRANSPORT_SECRET_FILE=" + path + ": " + what);
}

// A user who can read or replace the file can join the job.
Status CheckMode(const std::string& path, mode_t mode, std::string* warning) {
  if ((mode & (S_IRWXO | S_IWGRP)) != 0) {
    return Bad(path, "other users can read or change it. Make it private with: chmod 600 " + path);
  }
  if ((mode & S_IRGRP) != 0) {
    *warning = Bad(path, "its group can read it").message();
  }
  return OkStatus();
}

Status ReadFile(const std::string& path, std::string* text, std::string* warning) {
  // A pipe must not block the caller.
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return Bad(path, std::string("cannot open it: ") + std::strerror(errno));
  struct stat found = {};
  Status status;
  if (fstat(fd, &found) != 0 || !S_ISREG(found.st_mode)) {
    status = Bad(path, "it is not a regular file");
  } else {
    status = CheckMode(path, found.st_mode, warning);
  }
  text->resize(kMaxFile + 1);
  size_t length = 0;
  while (status.ok() && length < text->size()) {
    const ssize_t got = read(fd, text->data() + length, text->size() - length);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) status = Bad(path, std::string("cannot read it: ") + std::strerror(errno));
    if (got <= 0) break;
    length += static_cast<size_t>(got);
  }
  close(fd);
  text->resize(length);
  if (status.ok() && length > kMaxFile) status = Bad(path, "it has more than 4096 bytes");
  return status;
}

bool SameTime(const timespec& a, const timespec& b) {
  return a.tv_sec == b.tv_sec && a.tv_nsec == b.tv_nsec;
}

}  // namespace

Status ReadSecrets(const std::string& path, std::vector<std::string>* secrets,
                   std::string* warning) {
  static constexpr char kSpace[] = " \t\r";
  std::string text;
  RDMA_RETURN_IF_ERROR(ReadFile(path, &text, warning));
  secrets->clear();
  for (size_t begin = 0, number = 1; begin < text.size(); ++number) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    std::string line = text.substr(begin, end - begin);
    begin = end + 1;
    line.erase(0, line.find_first_not_of(kSpace));
    line.erase(line.find_last_not_of(kSpace) + 1);
    if (line.empty()) continue;
    if (line.size() < kMinSecretBytes) {
      return Bad(path, "line " + std::to_string(number) + " has fewer than " +
                           std::to_string(kMinSecretBytes) +
                           " characters. Make a secret with: openssl rand -hex 32");
    }
    secrets->push_back(std::move(line));
  }
  if (secrets->empty()) return Bad(path, "it is empty. Make a secret with: openssl rand -hex 32");
  return OkStatus();
}

bool SecretFile::Version::operator==(const Version& other) const {
  return device == other.device && inode == other.inode && size == other.size &&
         SameTime(modified, other.modified) && SameTime(changed, other.changed);
}

SecretFile::Version SecretFile::Look() const {
  struct stat found = {};
  if (stat(path_.c_str(), &found) != 0) return {};
  return {found.st_dev, found.st_ino, found.st_size, found.st_mtim, found.st_ctim};
}

Status SecretFile::Get(std::vector<std::string>* secrets) {
  secrets->clear();
  if (path_.empty()) return OkStatus();
  std::lock_guard<std::mutex> lock(mu_);
  // Read the version before the content, so that a concurrent change is noticed at the next call.
  const Version version = Look();
  if (secrets_.empty() || !(version == version_)) {
    std::vector<std::string> read;
    std::string warning;
    const Status status = ReadSecrets(path_, &read, &warning);
    if (!status.ok() && secrets_.empty()) return status;
    if (!status.ok()) warning = status.message() + "; the secrets read before stay in force";
    if (!warning.empty()) Log(LogLevel::kWarning, warning);
    if (status.ok()) secrets_ = std::move(read);
    version_ = version;
  }
  *secrets = secrets_;
  return OkStatus();
}

}  // namespace rdma_transport
