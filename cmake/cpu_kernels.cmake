# native/kernels/cpu/*.kernel.cc are compiled once per instruction set, with TROUPE_ISA as the name
# of the namespace; native/kernels/cpu_dispatch.cc picks one at run time. These files include no
# LibTorch or STL headers with inline functions: the linker keeps one copy of an inline function,
# and it could be the AVX-512 one.
file(GLOB CPU_KERNEL_SOURCES CONFIGURE_DEPENDS native/kernels/cpu/*.kernel.cc)
set(TROUPE_KERNEL_TARGETS "")
if(CPU_KERNEL_SOURCES)
  set(isas base)
  if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64|amd64")
    list(APPEND isas avx2 avx512)
    set(flags_avx2 -march=x86-64-v3)
    set(flags_avx512 -march=x86-64-v4 -mprefer-vector-width=512)
  endif()
  foreach(isa ${isas})
    add_library(troupe_kernels_${isa} OBJECT ${CPU_KERNEL_SOURCES})
    target_include_directories(troupe_kernels_${isa} PRIVATE native)
    target_compile_definitions(troupe_kernels_${isa} PRIVATE TROUPE_ISA=${isa})
    target_compile_options(troupe_kernels_${isa} PRIVATE
      -O3 ${flags_${isa}} -fopenmp-simd -fno-math-errno -fno-trapping-math -ffp-contract=fast -Wall -Wextra)
    target_sources(troupe_core PRIVATE $<TARGET_OBJECTS:troupe_kernels_${isa}>)
    list(APPEND TROUPE_KERNEL_TARGETS troupe_kernels_${isa})
  endforeach()
endif()
