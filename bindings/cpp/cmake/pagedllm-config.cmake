# find_package(pagedllm CONFIG) gives pagedllm::pagedllm (shared) and, where it is installed,
# pagedllm::static. The file lies in <prefix>/lib/cmake/pagedllm.

get_filename_component(_pagedllm_prefix "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)

if(NOT TARGET pagedllm::pagedllm)
  add_library(pagedllm::pagedllm SHARED IMPORTED)
  set_target_properties(pagedllm::pagedllm PROPERTIES
    IMPORTED_LOCATION "${_pagedllm_prefix}/lib/libpagedllm.so.1"
    IMPORTED_SONAME "libpagedllm.so.1"
    INTERFACE_INCLUDE_DIRECTORIES "${_pagedllm_prefix}/include")
endif()

if(EXISTS "${_pagedllm_prefix}/lib/libpagedllm.a" AND NOT TARGET pagedllm::static)
  find_package(Threads REQUIRED)
  add_library(pagedllm::static STATIC IMPORTED)
  set_target_properties(pagedllm::static PROPERTIES
    IMPORTED_LOCATION "${_pagedllm_prefix}/lib/libpagedllm.a"
    INTERFACE_INCLUDE_DIRECTORIES "${_pagedllm_prefix}/include"
    INTERFACE_LINK_LIBRARIES "Threads::Threads;${CMAKE_DL_LIBS};m")
endif()
