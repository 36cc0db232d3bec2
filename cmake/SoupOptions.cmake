# Options of the build, and the flags that every target gets.
option(SOUP_BUILD_TESTS "Build the tests" ON)
option(SOUP_SANITIZE "Build with AddressSanitizer and UndefinedBehaviorSanitizer" OFF)
option(SOUP_THREAD_SAFETY "Clang thread-safety analysis as errors" OFF)

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE RelWithDebInfo)
endif()
# RelWithDebInfo keeps line tables only: full debug information triples link time and object size.
set(CMAKE_CXX_FLAGS_RELWITHDEBINFO "-O2 -g1")

find_program(SOUP_CCACHE ccache)
if(SOUP_CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${SOUP_CCACHE})
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${SOUP_CCACHE})
endif()

add_library(soup_flags INTERFACE)
target_include_directories(soup_flags INTERFACE ${PROJECT_SOURCE_DIR})
target_compile_definitions(soup_flags INTERFACE SOUP_VERSION="${PROJECT_VERSION}")
# -ffp-contract=off: a compiler that fuses multiply and add in one place and not in another changes
# bits between builds; kernels that want FMA ask for it by intrinsic (docs/NUMERICS.md).
target_compile_options(soup_flags INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wno-unused-parameter -Wno-missing-field-initializers -ffp-contract=off>)
if(SOUP_SANITIZE)
  target_compile_options(soup_flags INTERFACE -fsanitize=address,undefined -fno-omit-frame-pointer)
  target_link_options(soup_flags INTERFACE -fsanitize=address,undefined)
endif()
if(SOUP_THREAD_SAFETY)
  if(NOT CMAKE_CXX_COMPILER_ID MATCHES Clang)
    message(FATAL_ERROR "SOUP_THREAD_SAFETY needs clang (preset clang)")
  endif()
  target_compile_options(soup_flags INTERFACE -Wthread-safety -Werror=thread-safety)
endif()
