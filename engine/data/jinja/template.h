// A chat template: the part of Jinja that such templates use, as Hugging Face sets it up
// (trim_blocks, lstrip_blocks, an immutable sandbox, loop controls, tojson, raise_exception,
// strftime_now, generation blocks). What it does not know it refuses with line and column.
//
// Known: set (also blocks, filtered ones, and namespaces), for (filter, else, recursive, loop
// variables, break, continue), if, macro (varargs, kwargs, caller), call, filter, with, generation,
// raw, comments; every operator of Jinja's expressions; the filters of filters.cc and
// list_filters.cc, the tests of value_tests.cc, the methods of methods.cc. Not known: inheritance
// and blocks, imports, escaping.
//
// Immutable once parsed; any thread.
#ifndef SOUP_ENGINE_DATA_JINJA_TEMPLATE_H_
#define SOUP_ENGINE_DATA_JINJA_TEMPLATE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/data/value.h"

namespace soup::engine::jinja {

struct RenderOptions {
  int64_t max_output_bytes = 64 << 20;
  int64_t max_steps = 20'000'000;  // evaluations, items gone over, 16 bytes of text looked through
  int64_t max_made_bytes = 512 << 20;  // of every text and list, kept or not
  int64_t now_unix_seconds = 0;        // what strftime_now tells, in local time
};

struct Rendering {
  std::string text;
  // Bytes [begin, end) of the text that generation blocks wrote, in order.
  std::vector<std::pair<size_t, size_t>> generation;
};

class Template {
 public:
  // `file`: what messages call it. Errors: InvalidArgument "<file> line L column C: ...".
  static absl::StatusOr<std::unique_ptr<Template>> Parse(absl::string_view source,
                                                         const std::string& file);
  ~Template();

  // Errors: InvalidArgument, as above: of the template (raise_exception too) or a limit.
  absl::StatusOr<Rendering> Render(const Value::Items& variables,
                                   const RenderOptions& options) const;
  bool has_generation_blocks() const;

 private:
  Template();
  struct Rep;
  std::unique_ptr<Rep> rep_;
};

}  // namespace soup::engine::jinja

#endif  // SOUP_ENGINE_DATA_JINJA_TEMPLATE_H_
