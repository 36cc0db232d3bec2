// Streams and events, as far as the executor sees them. A stream is a queue of device work in
// order; its owner is a type of the backend, the executor holds views. An event marks a place in a
// stream; it may be recorded again, and a wait is for the last record made before the wait.
#ifndef SOUP_ENGINE_DEVICE_EVENT_H_
#define SOUP_ENGINE_DEVICE_EVENT_H_

#include <cstdint>
#include <memory>
#include <utility>

namespace soup::engine {

enum class StreamKind : uint8_t { kCompute, kCopy, kOffload };

// Does not own. Valid while its backend lives. Plain value.
class StreamView {
 public:
  constexpr StreamView(StreamKind kind, void* native) : kind_(kind), native_(native) {}
  StreamKind kind() const { return kind_; }
  void* native() const { return native_; }  // null on the CPU; a cudaStream_t on CUDA

 private:
  StreamKind kind_;
  void* native_;
};

// The backend's side of an event.
class EventRep {
 public:
  virtual ~EventRep() = default;
};

// Owner of an event; move-only. May die while a stream still has to reach it. One that was never
// recorded is complete.
class Event {
 public:
  Event() = default;
  explicit Event(std::shared_ptr<EventRep> rep) : rep_(std::move(rep)) {}
  Event(Event&&) noexcept = default;
  Event& operator=(Event&&) noexcept = default;
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  ~Event() = default;

  const std::shared_ptr<EventRep>& rep() const { return rep_; }

 private:
  std::shared_ptr<EventRep> rep_;
};

}  // namespace soup::engine

#endif  // SOUP_ENGINE_DEVICE_EVENT_H_
