# Read by zkServer.sh and zkCli.sh. Debian's own file fixes the directories; the published image
# takes them from the environment, and so does this.
ZOOCFGDIR=${ZOOCFGDIR:-/conf}
ZOOCFG=$ZOOCFGDIR/zoo.cfg
ZOO_LOG_DIR=${ZOO_LOG_DIR:-/logs}
ZOO_LOG_FILE=zookeeper.log
JAVA=${JAVA_HOME:+$JAVA_HOME/bin/}java
# What the user configures comes first, then the defaults of this image. The package leaves the choice
# of a logger open.
CLASSPATH=$ZOOCFGDIR:/etc/zookeeper:/usr/share/java/zookeeper.jar:/usr/share/java/slf4j-log4j12.jar:/usr/share/java/log4j-1.2.jar
