# dalli 3.0 speaks the binary protocol, which is not served.
require "dalli"
Dalli.logger.level = Logger::FATAL
begin
  Dalli::Client.new("127.0.0.1:#{ARGV[0]}", socket_timeout: 5).set("jobs", "one")
rescue Dalli::RingError
  puts "no server"
end
