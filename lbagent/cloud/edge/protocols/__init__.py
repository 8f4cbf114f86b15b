"""What is said to routers: SSDP, descriptions, SOAP (UPnP IGD), NAT-PMP. Nothing here knows Services."""
