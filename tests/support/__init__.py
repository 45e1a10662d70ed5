"""What the tests of several rooms share: servers, clients, brokers on a fake disk, journals by hand."""
