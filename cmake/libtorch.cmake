# Imported target `libtorch`. TorchConfig.cmake is not used: it insists on a CUDA toolkit whenever
# the wheel was built with CUDA, although a CPU build needs only libtorch_cpu and libc10.
if(NOT EXISTS "${TROUPE_LIBTORCH}/include/ATen/ATen.h")
  message(FATAL_ERROR "No LibTorch at TROUPE_LIBTORCH='${TROUPE_LIBTORCH}' (include/ATen/ATen.h is missing). "
    "Run `npx troupe setup`, or pass -DTROUPE_LIBTORCH=<torch directory>.")
endif()
file(STRINGS "${TROUPE_LIBTORCH}/include/torch/headeronly/version.h" version_lines REGEX "define TORCH_VERSION_(MAJOR|MINOR|PATCH)")
foreach(part MAJOR MINOR PATCH)
  string(REGEX MATCH "TORCH_VERSION_${part} ([0-9]+)" _ "${version_lines}")
  set(TROUPE_LIBTORCH_${part} ${CMAKE_MATCH_1})
endforeach()
message(STATUS "LibTorch ${TROUPE_LIBTORCH_MAJOR}.${TROUPE_LIBTORCH_MINOR}.${TROUPE_LIBTORCH_PATCH} at ${TROUPE_LIBTORCH}")
if(TROUPE_LIBTORCH_MAJOR LESS 2 OR (TROUPE_LIBTORCH_MAJOR EQUAL 2 AND TROUPE_LIBTORCH_MINOR LESS 11))
  message(FATAL_ERROR "Troupe supports LibTorch 2.11 to 2.14; this is ${TROUPE_LIBTORCH_MAJOR}.${TROUPE_LIBTORCH_MINOR}.")
endif()

find_package(Threads REQUIRED)
add_library(libtorch INTERFACE)
target_include_directories(libtorch SYSTEM INTERFACE
  "${TROUPE_LIBTORCH}/include" "${TROUPE_LIBTORCH}/include/torch/csrc/api/include")
target_link_directories(libtorch INTERFACE "${TROUPE_LIBTORCH}/lib")
target_link_libraries(libtorch INTERFACE torch_cpu c10 Threads::Threads)
# ATen's parallel_for is a header template: it runs in OpenMP only when this is compiled with it.
target_compile_options(libtorch INTERFACE "$<$<COMPILE_LANGUAGE:CXX>:-fopenmp;-Wno-unknown-pragmas>")
target_compile_definitions(libtorch INTERFACE AT_PARALLEL_OPENMP=1 USE_C10D_GLOO
  TROUPE_LIBTORCH_VERSION="${TROUPE_LIBTORCH_MAJOR}.${TROUPE_LIBTORCH_MINOR}.${TROUPE_LIBTORCH_PATCH}")
# Programs must name an OpenMP runtime: the one that LibTorch brings, never a second one. The addon
# names none (it finds LibTorch's through libtorch_cpu), because its file name differs between wheels.
add_library(libtorch_openmp INTERFACE)
file(GLOB bundled_gomp "${TROUPE_LIBTORCH}/lib/libgomp*.so*")
if(bundled_gomp)
  list(GET bundled_gomp 0 bundled_gomp)
  target_link_libraries(libtorch_openmp INTERFACE "${bundled_gomp}")
else()
  target_link_libraries(libtorch_openmp INTERFACE gomp)
endif()
