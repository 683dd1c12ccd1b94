# SPDX-License-Identifier: Apache-2.0
# The Python package `agpcs`. Its extension links the compiler and never LibTorch, so one build serves every PyTorch.
# It can be imported from the build folder: PYTHONPATH=build/release/python.
if(NOT AGPCS_HAS_PYTHON)
  return()
endif()

set(agpcs_python_modules __init__.py _errors.py _plan.py torch.py _torch_groups.py _torch_sampler.py)
set(agpcs_python_folder "${PROJECT_BINARY_DIR}/python/agpcs")
set(AGPCS_PYTHON_DIR "lib/python3/dist-packages" CACHE STRING "Where the Python package is installed, below the prefix")

pybind11_add_module(agpcs_python MODULE NO_EXTRAS python/module.cc)
set_target_properties(agpcs_python PROPERTIES
  OUTPUT_NAME _agpcs LIBRARY_OUTPUT_DIRECTORY "${agpcs_python_folder}" CXX_VISIBILITY_PRESET hidden)
set(agpcs_python_deps tools_compile tools_plan ir)
agpcs_check_arrows(agpcs_python tools ${agpcs_python_deps})
target_include_directories(agpcs_python PRIVATE "${PROJECT_SOURCE_DIR}")
agpcs_target_defaults(agpcs_python VISIBILITY PRIVATE DEPS ${agpcs_python_deps})
# Their symbols are another library's in the same process, such as PyTorch's.
target_link_options(agpcs_python PRIVATE LINKER:--exclude-libs,ALL)

file(MAKE_DIRECTORY "${agpcs_python_folder}")
foreach(module IN LISTS agpcs_python_modules)
  file(CREATE_LINK "${CMAKE_CURRENT_LIST_DIR}/agpcs/${module}" "${agpcs_python_folder}/${module}" SYMBOLIC)
  install(FILES "${CMAKE_CURRENT_LIST_DIR}/agpcs/${module}" DESTINATION "${AGPCS_PYTHON_DIR}/agpcs" COMPONENT python)
endforeach()
install(TARGETS agpcs_python LIBRARY DESTINATION "${AGPCS_PYTHON_DIR}/agpcs" COMPONENT python)
