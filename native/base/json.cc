#include "base/json.h"

#include <cstdio>

namespace rdma_transport {

std::string Quote(const std::string& text) {
  std::string out = "\"";
  for (unsigned char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += static_cast<char>(c);
    } else if (c < 0x20) {
      char escape[8];
      std::snprintf(escape, sizeof(escape), "\\u%04x", c);
      out += escape;
    } else {
      out += static_cast<char>(c);
    }
  }
  return out + "\"";
}

JsonTree& JsonTree::At(std::string_view path) {
  if (path.empty()) return *this;
  const size_t dot = path.find('.');
  JsonTree& field = Field(path.substr(0, dot));
  return dot == path.npos ? field : field.At(path.substr(dot + 1));
}

JsonTree& JsonTree::Field(std::string_view name) {
  for (JsonTree& field : fields_) {
    if (field.name_ == name) return field;
  }
  fields_.emplace_back().name_ = name;
  return fields_.back();
}

void JsonTree::AddTo(Json* object) const {
  for (const JsonTree& field : fields_) object->Field(field.name_, field.Text());
}

std::string JsonTree::Text() const {
  if (!json_.empty()) return json_;
  Json object('{');
  AddTo(&object);
  return object.End();
}

}  // namespace rdma_transport
