# Scheduler, workers, bases and the orchestrator: included by CMakeLists.txt of this folder.
soup_library(daemon_workers
  SRCS device_budget.cc event_loop.cc fd_store.cc pass_planner.cc prepare_runner.cc scheduler.cc spawn.cc
       worker_supervisor.cc
  DEPS soup::cache soup::daemon_common soup::engine_base soup::engine_plan soup::proto absl::cleanup
       absl::status absl::statusor absl::strings absl::synchronization absl::time
  PRIVATE_DEPS soup::daemon_state PkgConfig::SYSTEMD)
list(APPEND SOUP_CONTROL_ORCHESTRATION_SRCS daemon_orchestrator.cc job_preparer.cc
  orchestrator_jobs.cc orchestrator_passes.cc orchestrator_queries.cc orchestrator_worker.cc)
list(APPEND SOUP_CONTROL_ORCHESTRATION_DEPS soup::daemon_workers soup::cache soup::engine_plan)
