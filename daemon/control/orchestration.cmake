# Scheduler, workers, bases and the orchestrator: included by CMakeLists.txt of this folder.
soup_library(daemon_workers
  SRCS prepare_runner.cc scheduler.cc spawn.cc worker_supervisor.cc
  DEPS soup::daemon_common soup::engine_base soup::proto absl::cleanup absl::status absl::statusor
       absl::strings absl::synchronization absl::time)
list(APPEND SOUP_CONTROL_ORCHESTRATION_DEPS soup::daemon_workers)
