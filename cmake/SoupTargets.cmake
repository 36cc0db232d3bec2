# soup_library(engine_io SRCS a.cc b.cc DEPS soup::engine_base absl::status)
#   a static library soup_engine_io with the alias soup::engine_io.
function(soup_library name)
  cmake_parse_arguments(ARG "" "" "SRCS;DEPS;PRIVATE_DEPS" ${ARGN})
  if(ARG_SRCS)
    add_library(soup_${name} STATIC ${ARG_SRCS})
    target_link_libraries(soup_${name} PUBLIC soup_flags ${ARG_DEPS} PRIVATE ${ARG_PRIVATE_DEPS})
  else()
    add_library(soup_${name} INTERFACE)
    target_link_libraries(soup_${name} INTERFACE soup_flags ${ARG_DEPS})
  endif()
  add_library(soup::${name} ALIAS soup_${name})
endfunction()

# soup_test(safetensors_test SRCS safetensors_test.cc DEPS soup::engine_io LABELS unit [TIMEOUT 60])
#   a GoogleTest program, registered case by case (so CTest counts cases), with labels from STYLE.
#   Its own sources get SOUP_TEST_OPTIONS too (tests/CMakeLists.txt): with -Og a test takes a quarter less to compile.
#   What it tests is built as ever.
function(soup_test name)
  cmake_parse_arguments(ARG "" "TIMEOUT" "SRCS;DEPS;LABELS" ${ARGN})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 120)
  endif()
  add_executable(${name} ${ARG_SRCS})
  target_link_libraries(${name} PRIVATE soup_flags ${ARG_DEPS} GTest::gmock GTest::gtest_main)
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
  target_compile_definitions(${name} PRIVATE
    SOUP_TEST_DATA_DIR="${PROJECT_SOURCE_DIR}/tests" SOUP_SOURCE_DIR="${PROJECT_SOURCE_DIR}"
    SOUP_BINARY_DIR="${PROJECT_BINARY_DIR}")
  target_compile_options(${name} PRIVATE ${SOUP_TEST_OPTIONS})
  set(environment "")
  if(SOUP_SANITIZE)
    # Leaks of libraries, in programs that a test starts too.
    set(environment ENVIRONMENT "LSAN_OPTIONS=suppressions=${PROJECT_SOURCE_DIR}/tests/lsan.supp:print_suppressions=0")
  endif()
  include(GoogleTest)
  gtest_discover_tests(${name} DISCOVERY_MODE PRE_TEST
    PROPERTIES LABELS "${ARG_LABELS}" TIMEOUT ${ARG_TIMEOUT} ${environment})
endfunction()

# soup_executable(soupd SRCS main.cc DEPS ...): a program in ${build}/bin.
function(soup_executable name)
  cmake_parse_arguments(ARG "" "" "SRCS;DEPS" ${ARGN})
  add_executable(${name} ${ARG_SRCS})
  target_link_libraries(${name} PRIVATE soup_flags ${ARG_DEPS})
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/bin)
endfunction()
