# native/kernels/cuda and what links against it, for USE_CUDA. A machine without a GPU compiles this too; it needs nvcc
# of the CUDA that LibTorch was built for.
if(NOT EXISTS "${TROUPE_LIBTORCH}/lib/libtorch_cuda.so")
  message(FATAL_ERROR "USE_CUDA needs a CUDA build of LibTorch, and ${TROUPE_LIBTORCH} is a CPU build "
    "(lib/libtorch_cuda.so is missing).")
endif()
# The addon names no CUDA runtime: it finds LibTorch's through libtorch_cuda.
set(CMAKE_CUDA_RUNTIME_LIBRARY None)
set(CMAKE_CUDA_ARCHITECTURES OFF)  # for the compiler's own check
enable_language(CUDA)
if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)  # CMake up to 3.25 does not know that nvcc has it
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
endif()

# Headers of the CUDA libraries (cuBLAS, NCCL, ...): of the toolkit where it has them, else of the wheels that a Python
# torch is installed with. The toolkit comes first, because the wheels lack crt/.
get_filename_component(site_packages "${TROUPE_LIBTORCH}" DIRECTORY)
file(GLOB wheel_includes "${site_packages}/nvidia/*/include")
set(cuda_includes ${CMAKE_CUDA_TOOLKIT_INCLUDE_DIRECTORIES} ${wheel_includes})

file(GLOB CUDA_SOURCES CONFIGURE_DEPENDS native/kernels/cuda/*.cu native/kernels/cuda/*.cc)
target_sources(troupe_core PRIVATE ${CUDA_SOURCES})
# The architectures are flags: CMake 3.20 has no name for sm_90a.
set_target_properties(troupe_core PROPERTIES CUDA_ARCHITECTURES OFF CUDA_STANDARD 20 CUDA_STANDARD_REQUIRED ON)
set_source_files_properties(native/comm/nccl.cc PROPERTIES COMPILE_DEFINITIONS USE_C10D_NCCL)
target_include_directories(troupe_core SYSTEM PUBLIC ${cuda_includes})
# sm_80 and sm_90a, and PTX for what comes after (that of 90a would run nowhere else).
target_compile_options(troupe_core PRIVATE "$<$<COMPILE_LANGUAGE:CUDA>:--expt-relaxed-constexpr;--extended-lambda;\
-gencode=arch=compute_80,code=sm_80;-gencode=arch=compute_90a,code=sm_90a;-gencode=arch=compute_90,code=compute_90>")

# --no-as-needed: nothing else would make LibTorch see the GPU in files that call no CUDA function themselves.
target_link_libraries(troupe_core PUBLIC -Wl,--no-as-needed torch_cuda c10_cuda -Wl,--as-needed)
# Programs, unlike the addon, must have every symbol resolved when they are linked.
foreach(library cudart cublas)
  file(GLOB found LIST_DIRECTORIES OFF "${site_packages}/nvidia/*/lib/lib${library}.so.*" "${TROUPE_LIBTORCH}/lib/lib${library}*.so*")
  if(NOT found)
    find_library(CUDA_LIBRARY_${library} ${library} PATHS ${CMAKE_CUDA_IMPLICIT_LINK_DIRECTORIES})
    set(found ${CUDA_LIBRARY_${library}})
  endif()
  if(found)
    list(GET found 0 found)
    target_link_libraries(libtorch_openmp INTERFACE "${found}")
  endif()
endforeach()
target_link_options(libtorch_openmp INTERFACE -Wl,--allow-shlib-undefined)
