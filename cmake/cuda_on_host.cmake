# The kernels of native/kernels/cuda for tests on a machine without a GPU, compiled as C++: the threads of a block are
# coroutines (test/native/cuda_on_host). A program that links the objects finds them where others find no GPU.
file(GLOB KERNEL_SOURCES CONFIGURE_DEPENDS native/kernels/cuda/*.cu native/kernels/cuda/*.cc)
file(GLOB GPU_SOURCES CONFIGURE_DEPENDS test/native/cuda_on_host/*.cc)
add_library(cuda_on_host OBJECT ${KERNEL_SOURCES} ${GPU_SOURCES})
set_source_files_properties(${KERNEL_SOURCES} PROPERTIES LANGUAGE CXX)
target_include_directories(cuda_on_host BEFORE PRIVATE test/native/cuda_on_host/include test/native native)
target_link_libraries(cuda_on_host PRIVATE libtorch)
# A GPU refuses loads off their boundary, and so does the sanitizer.
target_compile_options(cuda_on_host PRIVATE -x c++ -include cuda_on_host/language.h -Wall -Wextra -Wno-unused-parameter
  -Wno-unknown-pragmas -fsanitize=alignment -fno-sanitize-recover=alignment)
if(USE_ASAN)
  target_compile_options(cuda_on_host PRIVATE ${TROUPE_SANITIZERS})
endif()

function(add_program_on_host program source)
  add_executable(${program} test/native/${source}.cc $<TARGET_OBJECTS:cuda_on_host>)
  target_include_directories(${program} PRIVATE test/native)
  target_link_libraries(${program} PRIVATE troupe_core libtorch_openmp)
  target_link_options(${program} PRIVATE -fsanitize=alignment)
  add_test(NAME ${program} COMMAND ${program} ${ARGN})
  set_tests_properties(${program} PROPERTIES ENVIRONMENT "GOMP_SPINCOUNT=0")
endfunction()
foreach(name cuda_engine_test cuda_kernels_test cuda_products_test cuda_vocabulary_shard_test)
  add_program_on_host(${name}_on_host ${name})
endforeach()
# Of programs that also test a CPU the cases that name a GPU.
foreach(name gated_delta_test grouped_gemm_test paged_attention_test token_choices_test)
  add_program_on_host(${name}_on_host ${name} gpu)
endforeach()
# Of the coroutines themselves.
add_program_on_host(cuda_on_host_test cuda_on_host_test)
