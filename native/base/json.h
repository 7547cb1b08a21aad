// Formats JSON.
#pragma once

#include <list>
#include <string>
#include <string_view>
#include <utility>

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

// Returns an array with to_json(item) of each item.
template <typename Items, typename ToJson>
std::string JsonArray(const Items& items, ToJson to_json) {
  Json json('[');
  for (const auto& item : items) json.Add(to_json(item));
  return json.End();
}

// Builds nested objects from values by path. Names keep the order in which they were added. Not
// thread-safe.
class JsonTree {
 public:
  // Returns the value at `path`, which is names with dots between them; "" is this value. A value
  // that does not exist yet becomes an empty object.
  JsonTree& At(std::string_view path);
  // Like At(), but `name` is one name, which may have dots.
  JsonTree& Field(std::string_view name);
  void Set(std::string json) { json_ = std::move(json); }

  // Adds the fields of this object to `object`.
  void AddTo(Json* object) const;

 private:
  std::string Text() const;

  std::string name_;
  std::string json_;  // empty: an object of `fields_`
  std::list<JsonTree> fields_;
};

}  // namespace rdma_transport
