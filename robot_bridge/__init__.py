"""ROS 2 bridge: observe, arbitrate human and policy, filter for safety, record."""
