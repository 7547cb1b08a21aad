// Formats JSON.
#pragma once

#include <string>

namespace rdma_transport {

// Returns `text` as a JSON string.
std::string Quote(const std::string& text);

// Builds "{...}" or "[...]" from parts that are already JSON. Not thread-safe.
class Json {
 public:
  explicit Json(char open) : text_(1, open), close_(open == '{' ? '}' : ']') {}

  Json& Add(const std::string& json) {
    if (text_.size() > 1) text_ += ", ";
    text_ += json;
    return *this;
  }
  Json& Field(const std::string& name, const std::string& json) {
    return Add(Quote(name) + ": " + json);
  }
  Json& Text(const std::string& name, const std::string& text) { return Field(name, Quote(text)); }
  Json& Flag(const std::string& name, bool value) { return Field(name, value ? "true" : "false"); }
  template <typename Number>
  Json& Count(const std::string& name, Number value) {
    return Field(name, std::to_string(value));
  }
  std::string End() const { return text_ + close_; }

 private:
  std::string text_;
  char close_;
};

}  // namespace rdma_transport
